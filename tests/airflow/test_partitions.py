"""Asset partitions: the key of a DAG run reaches its TrainJob, the events of its Assets and the registry."""

from __future__ import annotations

import itertools
from datetime import datetime, timezone
from functools import partial

import pytest
from airflow.sdk import DAG, get_current_context, task

from airflow_provider.assets import ModelAsset
from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.task_owner import build_owner_key
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainer, RestartPolicy
from trainer_core.testing.recorder import completes, fails
from trainer_core.tracking.model_registry import FolderRegistry

sdk = pytest.importorskip("airflow.sdk")
pytestmark = pytest.mark.skipif(
    not hasattr(sdk, "PartitionedAssetTimetable"), reason="Airflow before 3.2 has no partitions"
)

_ids = itertools.count()
START = datetime(2024, 1, 1, tzinfo=timezone.utc)
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def describe_environment(region: str) -> list:
    import os

    return [region, os.environ.get("TRAINJOB_PARTITION")]


def score(value: float = 0.5) -> dict:
    return {"r2": value}


def a_task(function=score, **arguments):
    return TrainJobOperator(
        **{"task_id": "train", "runtime": "python", "trainer": CustomTrainer(function), **arguments}
    )


def a_dag(name=None, **arguments):
    return DAG(name or f"partitions_{next(_ids)}", start_date=START, **{"schedule": None, **arguments})


@pytest.fixture
def run_partition(run_trainjob_dag, monkeypatch):
    """Run a DAG in a DagRun with a partition key, as the REST API and the scheduler create them."""
    from airflow.models import dagrun

    create = dagrun.get_or_create_dagrun

    def create_with_key(key, *, session, **arguments):
        created = create(session=session, **arguments)
        created.partition_key = key
        session.commit()
        return created

    def run(dag, key):
        with monkeypatch.context() as patched:
            patched.setattr(dagrun, "get_or_create_dagrun", partial(create_with_key, key))
            return run_trainjob_dag(dag)

    return run


def read_events(asset):
    """Return the partition keys of the events of an Asset, oldest first."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    join = AssetModel.id == AssetEvent.asset_id
    query = select(AssetEvent.partition_key).join(AssetModel, join).where(AssetModel.name == asset.name)
    with create_session() as session:
        return list(session.scalars(query.order_by(AssetEvent.id)))


def test_the_key_of_a_run_reaches_arguments_environment_label_and_events(run_partition, client):
    model = ModelAsset("regions")
    with a_dag() as dag:
        a_task(describe_environment, func_args={"region": "{{ partition_key }}"}, outlets=[model])
    run = run_partition(dag, "EMEA north")

    assert run.xcom("train") == ["EMEA north", "EMEA north"]
    assert [job.name for job in client.list_jobs(partition="EMEA north")] == [run.xcom("train", "ref")["name"]]
    assert read_events(model) == ["EMEA north"]


def test_events_of_two_keys_start_a_run_for_each_with_a_separate_champion(
    trainjob_recorder, run_partition, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path))
    sales = ModelAsset("sales-trained")
    with a_dag() as producer:
        a_task(outlets=[sales])
    with a_dag(schedule=sdk.PartitionedAssetTimetable(assets=sales)) as consumer:
        train = a_task(func_args={"value": 0.5})
        PromoteModelOperator(
            task_id="promote", job=train.output["ref"], model="sales", metric="r2", partition="{{ partition_key }}"
        )
    run_partition(consumer, "none yet")  # Airflow knows the DAG from now on.
    for key in ("emea", "APAC"):
        run_partition(producer, key)

    assert sorted(create_scheduled_runs(consumer.dag_id)) == ["APAC", "emea"]
    values = {"emea": 0.9, "APAC": 0.4}
    artifacts = {"model": (tmp_path / "model").as_uri()}
    (tmp_path / "model").write_text("a model")
    states = []
    for key, value in (*values.items(), ("emea", 0.8)):
        trainjob_recorder.script(completes({"r2": value, "artifacts": artifacts}))
        states.append(run_partition(consumer, key).states["promote"])
    assert states == ["success", "success", "skipped"]
    registry = FolderRegistry(tmp_path / "registry")
    aliases = {each: round(registry.read_entry("sales", each)["metric"], 1) for each in list_aliases(registry)}
    assert aliases == {"champion-emea": 0.9, "champion-apac-26d4c512": 0.4}


def create_scheduled_runs(dag_id):
    """Let Airflow's scheduler create the runs of partitioned events; return the keys of those of a DAG."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        SchedulerJobRunner(job=Job())._create_dagruns_for_partitioned_asset_dags(session=session)
        query = select(DagRun.partition_key).where(DagRun.dag_id == dag_id, DagRun.run_type == "asset_triggered")
        return list(session.scalars(query))


def list_aliases(registry):
    return [alias for version in registry.list_versions("sales") for alias in version.aliases]


def test_mapped_tasks_update_the_partition_that_each_names(trainjob_recorder, run_trainjob_dag, client):
    trainjob_recorder.script(*[completes({"r2": 0.5})] * 2)
    model = ModelAsset("mapped-regions")
    with a_dag() as dag:
        TrainJobOperator.partial(
            task_id="train", runtime="python", trainer=CustomTrainer(score), outlets=[model]
        ).expand(partition=["emea", "apac"])
    run_trainjob_dag(dag)

    assert sorted(read_events(model)) == ["apac", "emea"]
    assert sorted(job.request.context.partition for job in trainjob_recorder.jobs) == ["apac", "emea"]


def test_the_events_of_a_sensor_have_the_partition_of_its_job(trainjob_recorder, run_trainjob_dag):
    trainjob_recorder.script(completes({"r2": 0.5}))
    model = ModelAsset("waited-regions")
    with a_dag() as dag:
        submitted = a_task(partition="emea", wait_for_completion=False)
        TrainJobSensor(task_id="wait", job=submitted.output, poke_interval=0.02, outlets=[model])
    run_trainjob_dag(dag)

    assert read_events(model) == ["emea"]


def test_a_model_is_compared_with_the_last_event_of_its_partition_behind_many_of_others(run_partition):
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    model = ModelAsset("compared", metric="r2")
    with a_dag() as dag:

        @task(inlets=[model])
        def compare():
            events = get_current_context()["inlet_events"]
            keys = ("emea", "apac", "never trained", None)
            found = [model.is_improved_by({"r2": 0.5}, events, key) for key in keys]
            return [*found, (model.last(events) or {}).get("metrics")]

        compare()
    run_partition(dag, "apac")
    with create_session() as session:
        asset = session.scalar(select(AssetModel).where(AssetModel.name == model.name))
        values = [("emea", 0.9), *[("apac", 0.1)] * 250]
        session.add_all(
            AssetEvent(asset_id=asset.id, extra={"metrics": {"r2": value}}, partition_key=key) for key, value in values
        )
    assert run_partition(dag, "emea").xcom("compare") == [False, True, True, False, {"r2": 0.9}]


@pytest.mark.parametrize(
    "kind", [a_task, partial(PromoteModelOperator, task_id="promote", job="j", model="m", metric="r")]
)
def test_the_template_of_a_key_is_refused_in_a_run_without_one(trainjob_recorder, run_trainjob_task, kind):
    done = run_trainjob_task(kind(partition="{{ partition_key }}"), partition_key=None)

    assert "this DAG run has none; start the run with a partition_key" in str(done.error)
    assert (done.state, trainjob_recorder.jobs) == ("failed", [])


def test_a_key_that_airflow_would_not_take_is_refused_when_the_dag_is_parsed():
    with pytest.raises(ValueError, match=r"^partition must be a string of 1 to 250 characters, .* got '  '$"):
        a_task(partition="  ")


def test_a_backfill_of_a_year_of_partitions_makes_a_job_for_each_once(trainjob_recorder, run_trainjob_dag, airflow_db):
    from airflow.models.backfill import ReprocessBehavior, _create_backfill
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_provider.testing.dags import _write_dag

    with a_dag(
        schedule=sdk.CronPartitionTimetable("0 1 * * *", timezone="UTC", key_format="%Y-%m-%d"), catchup=False
    ) as dag:
        train = a_task(retries=1)
    _write_dag(dag)
    backfill = partial(
        _create_backfill,
        dag_id=dag.dag_id,
        from_date=datetime(2024, 3, 1, tzinfo=timezone.utc),
        to_date=datetime(2025, 2, 28, 23, tzinfo=timezone.utc),
        max_active_runs=4,
        reverse=False,
        dag_run_conf=None,
        triggering_user_name="ada",
        reprocess_behavior=ReprocessBehavior.NONE,
    )
    backfill()
    with create_session() as session:
        runs = session.execute(select(DagRun.run_id, DagRun.partition_key).where(DagRun.dag_id == dag.dag_id)).all()
    trainjob_recorder.script(*[completes({"r2": 0.5})] * len(runs))
    for run_id, key in [*runs, *runs[::10]]:  # Every tenth worker died before it recorded the result.
        train.execute({"ti": StandInTaskInstance(run_id=run_id, max_tries=1), "partition_key": key})

    assert len({key for _, key in runs}) == len(runs) == 365
    assert sorted(job.request.context.partition for job in trainjob_recorder.jobs) == sorted(key for _, key in runs)
    owners = {job.request.context.owner.key for job in trainjob_recorder.jobs}
    assert owners == {build_owner_key(StandInTaskInstance(run_id=run_id)) for run_id, _ in runs}


class Store(dict):
    """Airflow's storage of one task, which outlives a clear that keeps the state of the task."""

    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


@pytest.mark.parametrize(
    ("on_clear", "is_kept", "first", "generations"),
    [
        ("ask", True, fails("UserCode"), ["0", "0"]),
        ("ask", False, fails("UserCode"), ["0", "1"]),
        ("ask", True, completes({"r2": 0.5}), ["0", "1"]),
        ("new", True, fails("UserCode"), ["0", "1"]),
    ],
    ids=["continues", "state dropped", "complete", "new"],
)
def test_a_cleared_task_continues_its_job_only_if_asked_and_its_state_was_kept(
    trainjob_recorder, run_trainjob_task, on_clear, is_kept, first, generations
):
    trainjob_recorder.script(first, completes({"r2": 0.6}))
    store = Store()
    operator = a_task(on_clear=on_clear)
    done = run_trainjob_task(operator, task_state_store=store)
    cleared = done.clear() if is_kept else run_cleared(done)

    assert [job.request.context.owner.generation for job in trainjob_recorder.jobs] == generations
    assert cleared.returned == {"r2": 0.6}
    # A retry after the clear keeps to what the clear decided.
    assert cleared.retry().xcoms["ref"] == cleared.xcoms["ref"]


def test_a_task_that_a_person_clears_and_continues_has_a_new_budget_of_restarts(run_trainjob_task, tmp_path):
    policy = RestartPolicy(max_restarts=0, exit_codes={3: "count"}, delay=0)
    trainer = CustomTrainer(exit_until_a_file_exists, func_args={"path": str(tmp_path / "mended")})
    operator = a_task(trainer=trainer, options=[policy], on_clear="ask", backend="local")
    done = run_trainjob_task(operator, task_state_store=Store())
    (tmp_path / "mended").touch()
    retried, cleared = done.retry(), done.clear()
    assert (done.xcoms["status"], retried.xcoms["status"], cleared.returned) == ("Failed", "Failed", "mended")


def exit_until_a_file_exists(path):
    import sys
    from pathlib import Path

    if not Path(path).exists():
        sys.exit(3)
    return "mended"


def run_cleared(done):
    done.context["task_state_store"].clear()
    return done.clear()


def test_an_unknown_on_clear_is_refused():
    with pytest.raises(ValueError, match=r"^on_clear must be one of new, ask; got 'keep'$"):
        a_task(on_clear="keep")


def test_the_trace_of_a_try_is_not_part_of_the_work(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(completes({"r2": 0.5}))
    operator = a_task()
    ti = StandInTaskInstance(run_id="a-run", max_tries=1)
    ti.context_carrier = {"traceparent": TRACE}
    operator.execute({"ti": ti})
    operator.execute({"ti": ti.next_try()})

    (job,) = trainjob_recorder.jobs
    assert job.request.job_env == {"TRACEPARENT": TRACE}
