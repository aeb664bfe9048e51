"""Example DAGs: sweep, Assets, approval, drift, several backends, queues, fine-tuning, backfill."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import airflow.sdk
import pendulum
import pytest
from fake_cluster import Cluster

from airflow_provider.compat import AirflowFailException
from trainer_core.cli import main
from trainer_core.testing.recorder import completes

pytestmark = pytest.mark.slow

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture
def dags(trainjob_dags, monkeypatch, tmp_path):
    monkeypatch.setenv("ENERGY_DRIFT_FILE", str(tmp_path / "drift.json"))
    return trainjob_dags(DAGS)


def day(number):
    return datetime(2026, 3, number, tzinfo=timezone.utc)


def test_dag_files_do_not_import_each_other(dags):
    files = {Path(dag.fileloc).stem for dag in dags.values()}
    imported = {name for file in files for name in _imported_by(DAGS / f"{file}.py")}

    assert imported & files == set()


def _imported_by(path):
    return re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.M)


def test_a_sweep_trains_each_learning_rate_and_selects_the_best(dags, run_trainjob_dag, trainjob_client):
    run = run_trainjob_dag(dags["sweep_forecast"])

    errors = [run.xcom("train", map_index=index)["error"] for index in range(4)]
    assert run.state == "success"
    assert run.xcom("best_of")["error"] == min(errors)
    assert run.xcom("best_of")["learning_rate"] == 1.0
    assert len(trainjob_client.list_jobs()) == 4


def test_the_best_parameters_of_a_search_are_trained_and_promoted(dags, run_trainjob_dag, trainjob_client):
    run = run_trainjob_dag(dags["tune_forecast"])

    assert run.state == "success"
    assert run.xcom("train")["learning_rate"] == run.xcom("tune", "parameters")["learning_rate"]
    assert len(run.xcom("tune", "trials")) == 6


def test_a_project_beside_the_dag_travels_with_its_job(dags, run_trainjob_dag):
    run = run_trainjob_dag(dags["retrain_churn"])

    assert run.state == "success"
    assert run.xcom("train")["metrics"]["accuracy"] == 0.9


def test_each_night_has_its_own_job_for_the_day_before(dags, run_trainjob_dag, trainjob_client):
    runs = [run_trainjob_dag(dags["nightly_forecast"], logical_date=day(number)) for number in (2, 3)]

    assert [run.xcom("train")["day"] for run in runs] == ["2026-03-01", "2026-03-02"]
    assert len({run.xcom("train", "ref")["name"] for run in runs}) == len(trainjob_client.list_jobs()) == 2


@pytest.mark.parametrize(
    ("zone", "moment", "date"),
    [
        ("Europe/Berlin", datetime(2026, 3, 1, 23, 30, tzinfo=timezone.utc), "2026-03-02"),
        ("Europe/Berlin", datetime(2026, 6, 30, 22, 30, tzinfo=timezone.utc), "2026-07-01"),
        ("America/Los_Angeles", datetime(2026, 1, 1, 2, 0, tzinfo=timezone.utc), "2025-12-31"),
        ("UTC", datetime(2026, 3, 1, 23, 30, tzinfo=timezone.utc), "2026-03-01"),
    ],
)
def test_the_date_of_a_run_is_that_of_the_time_zone_of_its_dag(run_trainjob_dag, zone, moment, date):
    documents = [DAGS.parent / name for name in ("README.md", "docs/guides/airflow.md", "dags/forecast.py")]
    documented = [re.findall(r"\"(\{\{ dag_run.run_after.*?\}\})\"", each.read_text())[0] for each in documents]
    start = pendulum.datetime(2025, 1, 1, tz=zone)
    with airflow.sdk.DAG(f"zone_{zone[-3:]}_{moment.month}", schedule="30 0 * * *", start_date=start) as dag:
        local = "(dag_run.logical_date or dag_run.run_after).astimezone(dag.timezone)"
        nightly = "{{ macros.ds_add(" + local + " | ds, 0) }}"
        airflow.sdk.task(task_id="dates")(lambda *dates: list(dates))(*documented, nightly)
    for logical_date in (moment, None):
        run = run_trainjob_dag(dag, run_after=moment, logical_date=logical_date)
        assert run.xcom("dates") == [date] * 4


def test_a_nightly_training_that_a_person_starts_has_no_logical_date(dags, run_trainjob_dag, trainjob_recorder):
    run = run_trainjob_dag(dags["nightly_forecast"], logical_date=None)
    assert (run.state, run.dag_run.logical_date) == ("success", None)
    (submitted,) = trainjob_recorder.requests
    assert submitted.work.trainer.code.args["day"] == str((run.dag_run.run_after - timedelta(days=1)).date())


def test_the_templates_of_the_examples_render_in_every_run(dags, capsys):
    main(["lint", str(DAGS)])
    assert "warning" not in capsys.readouterr().err


def test_the_nightly_training_updates_the_candidate_and_has_a_deadline(dags, run_trainjob_dag):
    nightly = dags["nightly_forecast"]
    (update,) = run_trainjob_dag(nightly, logical_date=day(5)).asset_updates

    assert update.name == "energy-candidate"
    assert update.extra["metrics"]["error"] < 0.2
    assert update.extra["artifact_uri"].endswith("forecast.json")
    assert nightly.deadline is not None


def test_a_candidate_is_promoted_only_if_it_is_better(dags, run_trainjob_dag, trainjob_recorder):
    trainjob_recorder.script(*(completes(left(error)) for error in (0.3, 0.4, 0.2)))
    states = []
    for number in (7, 8, 9):
        run_trainjob_dag(dags["nightly_forecast"], logical_date=day(number))
        states.append(run_trainjob_dag(dags["promote_forecast"]).states["promote"])

    assert states == ["success", "skipped", "success"]
    assert [asset.name for asset in assets_of(dags["promote_forecast"])] == ["energy-candidate"]


def test_a_language_model_is_promoted_only_if_its_loss_in_the_evaluation_is_lower(
    dags, run_trainjob_dag, trainjob_recorder
):
    made = completes({"artifacts": {"model": "file:///models/base"}})
    losses = (3.5, 3.6, 3.4)
    trained = [completes({"metrics": {"eval_loss": loss}, "artifacts": {"model": "file:///m"}}) for loss in losses]
    trainjob_recorder.script(*(each for one in trained for each in (made, one)))
    states = [run_trainjob_dag(dags["posttrain_llm"], logical_date=day(number)).states for number in (7, 8, 9)]

    assert [each["promote"] for each in states] == ["success", "skipped", "success"]


def assets_of(dag):
    """Return the schedule of a DAG."""
    return dag.timetable.asset_condition.objects


def left(error):
    return {"error": error, "artifacts": {"model": f"file:///models/{error}"}}


def test_nothing_is_promoted_without_approval(dags, run_trainjob_dag, trainjob_recorder):
    trainjob_recorder.script(completes(left(0.25)))
    approved = run_trainjob_dag(dags["approve_forecast"], mark_success_pattern="approve")

    assert approved.states == {"approve": "success", "promote": "success", "train": "success"}
    (update,) = approved.asset_updates
    assert (update.name, update.extra["artifact_uri"]) == ("energy-forecast", "file:///models/0.25")
    assert dags["approve_forecast"].get_task("promote").upstream_task_ids == {"approve", "train"}


def test_the_approval_shows_the_metrics_of_the_training(dags):
    approve = dags["approve_forecast"].get_task("approve").prepare_for_execution()
    pushed = {"metrics": {"error": 0.25}, "artifacts": {"model": "file:///models/1"}}
    approve.render_template_fields({"run_id": "tonight", "ti": Pushed(pushed)})

    assert approve.subject == "Promote the energy forecast of tonight?"
    assert approve.body == "Error: **0.2500**\n\nModel: `file:///models/1`"


class Pushed:
    """Task instance that reads XComs of another task."""

    def __init__(self, xcoms):
        self._xcoms = xcoms

    def xcom_pull(self, task_ids, key):
        return self._xcoms[key]


def test_a_drift_event_starts_the_retraining_once(dags, tmp_path):
    (drift,) = assets_of(dags["retrain_on_drift"])
    (watcher,) = drift.watchers
    report = tmp_path / "drift.json"
    report.write_text("{}")

    assert asyncio.run(first_event(watcher.trigger)).payload is True
    assert not report.exists()


async def first_event(trigger):
    return await anext(trigger.run())


def test_a_retraining_after_drift_trains_a_candidate(dags, run_trainjob_dag, trainjob_recorder):
    (update,) = run_trainjob_dag(dags["retrain_on_drift"]).asset_updates

    assert (update.name, update.task_id) == ("energy-candidate", "train")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster for the connections of the examples."""
    with Cluster(kueue=True, namespaces=["runai-team-a"]) as found:
        found.load_stock_runtimes()
        config = {
            "backend": "kubernetes",
            "config_file": str(found.kubeconfig(tmp_path / "config")),
            "namespace": "default",
        }
        monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_CLUSTER", json.dumps({"conn_type": "trainjob", "extra": config}))
        operator = {**config, "backend": "training-operator"}
        monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_OPERATOR", json.dumps({"conn_type": "trainjob", "extra": operator}))
        runai = {**config, "backend": "runai", "namespace": "runai-team-a"}
        monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_RUNAI", json.dumps({"conn_type": "trainjob", "extra": runai}))
        yield found


@pytest.mark.skipif(not hasattr(airflow.sdk, "CronPartitionTimetable"), reason="an example needs Airflow 3.2")
@pytest.mark.parametrize("arguments", [[], ["--server"]])
def test_the_examples_pass_lint_and_their_backends_accept_them(cluster, dags, capsys, home, arguments):
    assert main(["lint", str(DAGS), *arguments]) == 0, capsys.readouterr().out
    assert cluster.objects("TrainJob") == []


def test_one_definition_runs_locally_and_on_a_cluster(dags, run_trainjob_dag, cluster):
    run = run_trainjob_dag(dags["train_anywhere"])

    assert run.states == {"train": "success", "try_out": "success"}
    assert [run.xcom(task, "ref")["backend"] for task in ("try_out", "train")] == ["local", "kubernetes"]
    assert run.xcom("train")["error"] < run.xcom("try_out")["error"]
    assert [job["metadata"]["name"] for job in cluster.objects("TrainJob")] == [run.xcom("train", "ref")["name"]]


def test_a_missing_connection_is_named(dags, run_trainjob_task, trainjob_recorder):
    train = dags["train_anywhere"].get_task("train")
    done = run_trainjob_task(train, params={"image": "python"})

    assert "trainjob_cluster" in str(done.error)
    assert "`airflow connections add" in str(done.error)
    assert isinstance(done.error, AirflowFailException)


def test_the_fine_tuning_example_submits_a_recipe_with_model_data_and_lora(dags, run_trainjob_dag, cluster):
    cluster.lives.set("*", "complete")
    run = run_trainjob_dag(dags["finetune_llm"])

    (job,) = cluster.objects("TrainJob")
    spec = job["spec"]
    assert run.states == {"finetune": "success"}
    assert spec["runtimeRef"]["name"] == "torchtune-llama3.2-1b"
    assert spec["initializer"]["dataset"]["storageUri"] == "hf://tatsu-lab/alpaca"
    assert spec["initializer"]["model"]["storageUri"] == "hf://meta-llama/Llama-3.2-1B-Instruct"
    assert spec["initializer"]["model"]["env"][0]["valueFrom"] == {
        "secretKeyRef": {"name": "huggingface", "key": "token"}
    }
    assert "model.lora_rank=16" in spec["trainer"]["args"]
    assert job["metadata"]["labels"]["team"] == "assistant"


def test_queued_jobs_wait_for_kueue_with_their_priorities(dags, run_trainjob_dag, cluster):
    cluster.lives.set("*", "kueue")
    run = run_trainjob_dag(dags["queue_priorities"])

    jobs = cluster.objects("TrainJob")
    labels = {job["metadata"]["name"].rpartition("-")[0]: job["metadata"]["labels"] for job in jobs}
    assert run.state == "success"
    assert {each["kueue.x-k8s.io/queue-name"] for each in labels.values()} == {"training"}
    assert {name: each["kueue.x-k8s.io/priority-class"] for name, each in labels.items()} == {
        "experiment-slow": "experiment",
        "experiment-fast": "experiment",
        "release": "release",
    }
