"""What may be shown of a manifest."""

from __future__ import annotations

import datetime

import pytest
from airflow.sdk._shared.secrets_masker import redact

from airflow_provider.ui import view
from airflow_provider.ui.store import Pushed, Task
from trainer_core import TrainJobRef


def shown(manifest):
    return view.manifest(manifest, lambda text, name: str(redact(text, name)))


def test_a_variable_whose_name_speaks_of_a_secret_has_no_value():
    env = [{"name": "API_KEY", "value": "s3cr3t"}, {"name": "EPOCHS", "value": "3"}]
    assert shown({"env": env}) == {"env": [{"name": "API_KEY", "value": "***"}, {"name": "EPOCHS", "value": "3"}]}


def test_the_same_holds_where_the_variables_are_a_dict():
    assert shown({"env": {"HF_TOKEN": "hf_1", "X": "1"}}) == {"env": {"HF_TOKEN": "***", "X": "1"}}


def test_the_same_holds_where_a_variable_has_its_value_below_it():
    items = {"HF_TOKEN": {"value": "hf_1"}, "X": {"value": "1"}}
    assert shown({"environment": {"items": items}}) == {
        "environment": {"items": {"HF_TOKEN": {"value": "***"}, "X": {"value": "1"}}}
    }


def test_a_secret_has_entries_but_no_values():
    secret = {"kind": "Secret", "metadata": {"name": "one"}, "stringData": {"model": "hf_literal"}}
    assert shown(secret)["stringData"] == {"model": "***"}


def test_a_reference_to_a_secret_is_shown():
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "one", "key": "k"}}}
    assert shown(reference) == reference


def test_code_and_data_for_programs_are_only_counted():
    assert shown({"args": ["torchrun", "x" * 1234]}) == {"args": ["torchrun", "(1,234 characters, not shown)"]}
    assert shown({"annotations": {"request": '{"password": "p"}'}}) == {
        "annotations": {"request": "(17 characters, not shown)"}
    }


def pushed(state, left):
    """What the task of a job on a cluster wrote down."""
    now = datetime.datetime.now(datetime.timezone.utc)
    ref = TrainJobRef("kubernetes", "team", "train-1", "uid")
    return Pushed(Task("a_dag", "run", "train"), ref, now, state, left)


@pytest.mark.parametrize(
    ("state", "left", "actions"),
    [
        ("deferred", {}, ["end"]),
        ("running", {}, ["end"]),
        ("up_for_retry", {}, ["end"]),
        ("failed", {}, ["rerun"]),
        (None, {}, []),
        ("failed", {"trainjob_deleted": {"by": "a person"}}, []),
    ],
)
def test_a_job_that_cannot_be_reached_is_ended_or_run_again_by_its_task(state, left, actions):
    assert view.task_actions(pushed(state, left)) == actions


@pytest.mark.parametrize("address", ["javascript:alert(1)", "https://[", {"a": "dict"}])
def test_an_address_that_a_task_wrote_is_a_link_only_if_it_is_safe_to_click(address):
    left = {"trainjob_dashboard_link": address, "trainjob_logs_link": "https://logs.example/train-1"}
    job = view.job(pushed("running", left), None, "there is no connection")
    assert ("dashboard" in job, job["logs"]) == (False, "https://logs.example/train-1")
