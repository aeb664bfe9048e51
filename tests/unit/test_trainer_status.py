"""update_trainjob_status: progress to the followers of a job, and to Trainer's status endpoint."""

from __future__ import annotations

import json

import pytest
from status_endpoint import Endpoint

from trainer_core.backends.trainer_v2.parse import parse_job
from trainer_core.node import progress, trainer_status
from trainer_core.node.trainer_status import update_trainjob_status


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret-token\n", encoding="utf-8")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(token))
    with Endpoint().running() as server:
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", server.url)
        yield server


@pytest.fixture(autouse=True)
def nothing_sent_yet(monkeypatch):
    monkeypatch.setattr(trainer_status, "_last_sent", float("-inf"))
    # However slow the machine is.
    monkeypatch.setattr(trainer_status, "INTERVAL", 3600.0)
    monkeypatch.setattr(trainer_status, "_TIMEOUT", 60.0)
    monkeypatch.delenv("RANK", raising=False)
    yield
    progress.flush()


def test_progress_reaches_the_status_of_the_job(endpoint):
    assert update_trainjob_status(30, 120, {"loss": 0.5, "phase": "warm-up"}) is True
    ((path, authorization, body),) = endpoint.requests
    assert (path, authorization) == (endpoint.path, "Bearer secret-token")
    status = json.loads(body)["trainerStatus"]
    assert status.pop("lastUpdatedTime").endswith("+00:00")
    metrics = [{"name": "loss", "value": "0.5"}, {"name": "phase", "value": "warm-up"}]
    assert status == {"progressPercentage": 30, "estimatedRemainingSeconds": 120, "metrics": metrics}


def test_progress_reaches_the_followers_too(capsys, monkeypatch):
    monkeypatch.setenv("TRAINJOB_PAYLOAD", "payload.json")
    update_trainjob_status(100, metrics={"loss": 0.5})
    assert '[trainjob:progress] {"step": 100, "total": 100, "metrics": {"loss": 0.5}, "t"' in capsys.readouterr().out


def test_without_an_endpoint_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("KUBEFLOW_TRAINER_SERVER_URL", raising=False)
    assert update_trainjob_status(30) is False


def test_only_the_first_rank_reports(endpoint, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert update_trainjob_status(30) is False
    assert endpoint.requests == []


def test_reports_are_spared_but_never_the_last(endpoint):
    assert [update_trainjob_status(percent) for percent in (1, 2, 3, 100)] == [True, False, False, True]
    assert endpoint.reported == [1, 100]


@pytest.mark.parametrize(("given", "sent"), [(-5, 0), (150, 100), (99.9, 99)])
def test_percentages_are_kept_within_bounds(endpoint, given, sent):
    update_trainjob_status(given)
    assert endpoint.reported == [sent]


@pytest.mark.parametrize("answer", [403, 404, 500])
def test_a_refused_report_does_not_end_the_training(endpoint, answer):
    endpoint.answer = answer
    assert update_trainjob_status(30) is False


def test_the_token_is_not_carried_to_another_place(endpoint):
    endpoint.answer = 307
    assert update_trainjob_status(30) is False
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("percent", ["many", object()])
def test_an_odd_report_does_not_end_the_training(endpoint, percent):
    assert update_trainjob_status(percent) is False


def test_a_server_that_is_away_does_not_end_the_training(endpoint, monkeypatch):
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "http://127.0.0.1:1/status")
    assert update_trainjob_status(30) is False


def test_a_token_that_is_missing_does_not_end_the_training(endpoint, monkeypatch):
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", "/nowhere/token")
    assert update_trainjob_status(30) is False


def test_a_report_at_a_rung_of_a_search_is_sent_at_once_and_read_back(endpoint, monkeypatch):
    settings = {"metric": "loss", "at": [2, 3], "best": "min", "value": "last"}
    monkeypatch.setenv("TRAINJOB_OBJECTIVE", json.dumps(settings))
    progress.reset()
    sent = [update_trainjob_status(step, metrics={"loss": 1 / step}) for step in (1, 2, 3, 4)]

    monkeypatch.delenv("TRAINJOB_OBJECTIVE")
    progress.reset()
    assert sent == [True, True, True, False]
    status = {"trainerStatus": json.loads(endpoint.bodies[-1])["trainerStatus"]}
    raw = {
        "metadata": {"name": "a", "namespace": "b", "uid": "c"},
        "spec": {"runtimeRef": {"name": "r"}},
        "status": status,
    }
    objective = parse_job(raw).progress.objective
    assert (objective.value, objective.step, objective.best) == (1 / 3, 3, 1 / 3)
    assert [rung[:3] for rung in objective.rungs] == [(0, 2, 0.5), (1, 3, 1 / 3)]
    assert parse_job(raw).progress.metrics == {"loss": 1 / 3}


@pytest.mark.parametrize("value", ["x", "7", "[1]", "[1, 2, {}]", "[1,2,3]"])
def test_metrics_of_another_program_with_these_names_are_passed_over(value):
    metrics = [{"name": "trainjob/objective", "value": value}, {"name": "trainjob/rung-x", "value": value}]
    raw = {"metadata": {"name": "a"}, "spec": {"runtimeRef": {}}, "status": {"trainerStatus": {"metrics": metrics}}}
    assert parse_job(raw).progress.objective is None
