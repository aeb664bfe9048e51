"""Links of a task: to the page, to a dashboard, to a log store."""

from __future__ import annotations

import json
import urllib.parse
from datetime import datetime, timezone

import pytest
from airflow.sdk import DAG
from airflow_fakes import double

from airflow_provider.links import LINKS, render_url
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainJobRef

_REF = TrainJobRef("kubernetes", "team", "train-1", "u/1")


@pytest.mark.parametrize(
    ("template", "url"),
    [
        ("https://dash.example/${namespace}/${name}", "https://dash.example/team/train-1"),
        ("https://dash.example/?id=${uid}&on=${backend}", "https://dash.example/?id=u%2F1&on=kubernetes"),
        ('http://g.example/?q={job="${name}"}&from=${__from}', 'http://g.example/?q={job="train-1"}&from=${__from}'),
        ("javascript:alert(1)//${name}", ""),
        ("//dash.example/${name}", ""),
        ("https://[${name}/", ""),
        (17, ""),
    ],
)
def test_a_url_template_becomes_a_safe_url(template, url):
    assert render_url(template, _REF) == url


@pytest.fixture
def submitted(run_trainjob_task, monkeypatch):
    """Run a task that does not wait; return its XComs."""

    def run(extra=None, **arguments):
        monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_DEFAULT", json.dumps({"conn_type": "trainjob", "extra": extra or {}}))
        operator = TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(double, {"number": 1}),
            wait_for_completion=False,
            **arguments,
        )
        done = run_trainjob_task(operator)
        assert done.state == "success", done.error
        return done

    return run


def test_the_link_to_the_page_is_pushed_at_submission(submitted):
    done = submitted()
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(done.xcoms["trainjob_link"]).query)
    assert query == {"dag_id": ["a_dag"], "run_id": [done.ti.run_id], "task_id": ["train"], "map_index": ["-1"]}


def test_without_templates_there_are_no_other_links(submitted):
    assert {"trainjob_dashboard_link", "trainjob_logs_link"}.isdisjoint(submitted().xcoms)


def test_url_templates_of_the_connection_become_links(submitted):
    left = submitted({"dashboard_url": "https://d.example/${name}", "logs_url": "https://l.example/${uid}"}).xcoms
    assert left["trainjob_dashboard_link"] == f"https://d.example/{left['ref']['name']}"
    assert left["trainjob_logs_link"] == f"https://l.example/{left['ref']['uid']}"


def test_the_connection_id_of_the_task_is_pushed(submitted):
    assert submitted().xcoms["trainjob_conn_id"] == "trainjob_default"


def test_a_task_with_a_configuration_object_needs_no_connection(submitted, trainjob_home):
    config = LocalProcessBackendConfig(home=trainjob_home)
    assert submitted(trainjob_conn_id="gone", backend_config=config).xcoms["trainjob_link"]


def test_before_submission_only_the_page_is_linked():
    operator = TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(double, {"number": 1}))
    links = [link.get_link(operator, ti_key=StandInTaskInstance()) for link in LINKS]
    assert [bool(link) for link in links] == [True, False, False, False]


@pytest.mark.parametrize("deferrable", [False, True])
def test_airflow_stores_no_xcom_for_a_link_without_a_url(run_trainjob_dag, deferrable, monkeypatch):
    extra = {"logs_url": "https://l.example/${name}"}
    monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_DEFAULT", json.dumps({"conn_type": "trainjob", "extra": extra}))
    with DAG("links", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)) as dag:
        TrainJobOperator(
            task_id="train", runtime="python", trainer=CustomTrainer(double, {"number": 1}), deferrable=deferrable
        )
    run = run_trainjob_dag(dag)
    assert run.state == "success"
    assert run.xcom("train", "trainjob_link")
    assert run.xcom("train", "trainjob_logs_link") == f"https://l.example/{run.xcom('train', 'ref')['name']}"
    assert run.xcom("train", "trainjob_dashboard_link") is None


def test_a_rejected_task_has_only_the_link_to_the_page(run_trainjob_task, monkeypatch):
    extra = {"logs_url": "https://l.example/${name}"}
    monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_DEFAULT", json.dumps({"conn_type": "trainjob", "extra": extra}))
    operator = TrainJobOperator(task_id="train", runtime="absent", trainer=CustomTrainer(double, {"number": 1}))
    executed = []
    monkeypatch.setattr(TrainJobOperator, "execute", _record(executed, TrainJobOperator.execute))
    assert run_trainjob_task(operator).error is not None
    assert [link.name for link in executed[0].operator_extra_links] == ["TrainJob"]


def _record(executed, execute):
    def recorded(self, context):
        executed.append(self)
        return execute(self, context)

    return recorded
