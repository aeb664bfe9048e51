"""The use of resources of a task's job, as an XCom and on the TrainJobs page."""

from __future__ import annotations

from airflow_provider import xcom
from airflow_provider.testing.tasks import StandInTaskInstance
from airflow_provider.ui import serializers
from trainer_core.model.jobs import Outcome
from trainer_core.model.resource_use import ResourceUse

REF = {"backend": "local", "namespace": "/home", "name": "job", "uid": "uid"}
USE = ResourceUse(nodes=1, seconds=60.0, cpu_percent=50.0, memory_peak=4, memory_limit=10)


def test_the_use_of_resources_is_an_xcom():
    ti = StandInTaskInstance()
    xcom.push_outcome(ti, Outcome(ref=REF, status="Complete", resource_use=USE))
    assert ResourceUse(**ti.xcoms["resource_use"]) == USE


def test_a_job_without_reports_has_no_such_xcom():
    ti = StandInTaskInstance()
    xcom.push_outcome(ti, Outcome(ref=REF, status="Complete"))
    assert "resource_use" not in ti.xcoms


def test_the_page_has_the_use_of_resources_of_an_ended_job():
    outcome = Outcome(ref=REF, status="Complete", resource_use=USE)
    assert serializers._serialize_resource_use(outcome)["memory_peak"] == 4
    assert serializers._serialize_resource_use(None) is None
