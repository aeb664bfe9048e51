"""Model Assets: data of their events, comparison of models, and deadlines of DAG runs."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from airflow.sdk import DAG, Asset, task, task_group
from airflow_fakes import double
from hypothesis import given, settings, strategies as st
from standalone import needs_trigger_on_kill

from airflow_provider.assets import ModelAsset
from airflow_provider.deadlines import late_run, log_late_run, slower_than_usual
from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.search import SearchOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from trainer_core import CustomTrainer
from trainer_core.testing.recorder import completes, fails

MODEL = ModelAsset("digits")
LEFT = {"accuracy": 0.9, "artifacts": {"model": "s3://models/digits", "report": "s3://reports/1"}}


def a_dag(name, **arguments):
    start = datetime(2024, 1, 1, tzinfo=timezone.utc)
    return DAG(name, schedule=None, start_date=start, **arguments)


def a_task(**arguments):
    trainer = CustomTrainer(func=double, func_args={"number": 1})
    return TrainJobOperator(**{"task_id": "train", "runtime": "python", "trainer": trainer, **arguments})


def test_a_model_asset_event_has_metrics_ref_and_artifacts_of_the_job(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(completes(LEFT))
    done = run_trainjob_task(a_task(outlets=[MODEL]))

    said = done.get_asset_extra(MODEL)
    assert said["metrics"] == {"accuracy": 0.9}
    assert said["artifact_uri"] == "s3://models/digits"
    assert said["artifacts"] == LEFT["artifacts"]
    assert said["ref"] == done.xcoms["ref"]
    assert said["job"] == done.xcoms["ref"]["name"]


def test_the_artifact_that_is_the_model_can_be_chosen(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(completes(LEFT))
    report = ModelAsset("report", artifact="report")

    assert run_trainjob_task(a_task(outlets=[report])).get_asset_extra(report)["artifact_uri"] == "s3://reports/1"


def test_the_event_of_any_other_asset_has_the_same_data(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(completes(LEFT))
    asset = Asset("plain")

    said = run_trainjob_task(a_task(outlets=[asset])).get_asset_extra(asset)
    assert said["metrics"] == {"accuracy": 0.9}
    assert "artifact_uri" not in said


def test_a_sensor_writes_the_event_of_the_model_it_waited_for(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(completes(LEFT))
    ref = run_trainjob_task(a_task(wait_for_completion=False)).returned
    waited = run_trainjob_task(TrainJobSensor(task_id="wait", job=ref, outlets=[MODEL]))

    assert waited.get_asset_extra(MODEL)["metrics"] == {"accuracy": 0.9}


def test_a_task_that_does_not_wait_cannot_have_a_model_outlet():
    with pytest.raises(ValueError, match="task 'train' does not wait for its TrainJob, so ModelAsset 'digits'"):
        a_task(outlets=[MODEL], wait_for_completion=False)


def expand_operator():
    TrainJobOperator.partial(task_id="train", trainer=CustomTrainer(double), outlets=[MODEL]).expand(
        func_args=[{"number": 1}, {"number": 2}]
    )


def expand_keywords():
    TrainJobOperator.partial(task_id="train", outlets=MODEL).expand_kwargs([{"trainer": {"image": "a"}}])


def expand_search():
    SearchOperator.partial(task_id="train", search_space={"number": [1]}, outlets=[MODEL]).expand(func_args=[{}])


def expand_sensor():
    submit = TrainJobOperator.partial(task_id="submit", wait_for_completion=False).expand(func_args=[{"number": 1}])
    TrainJobSensor.partial(task_id="train", outlets=[MODEL]).expand(job=submit.output)


def expand_function():
    @task.trainjob(outlets=[MODEL])
    def train(number: int):
        return number

    train.override(retries=1).expand(number=[1, 2])


def expand_group():
    @task_group
    def group(number):
        return a_task(func_args={"number": number}, outlets=[MODEL])

    group.expand(number=[1, 2])


def expand_group_of_sensors():
    @task_group
    def group(number):
        submit = a_task(func_args={"number": number}, wait_for_completion=False)
        TrainJobSensor(task_id="wait_for_train", job=submit.output, outlets=[MODEL])

    group.expand(number=[1, 2])


SWEEPS = [expand_operator, expand_keywords, expand_search, expand_sensor, expand_function, expand_group]


@pytest.mark.parametrize("expand", [*SWEEPS, expand_group_of_sensors])
def test_a_sweep_cannot_have_a_model_outlet_whose_last_event_would_be_that_of_any_member(expand):
    with a_dag("sweep"), pytest.raises(ValueError, match="train' is mapped, so the last event of ModelAsset 'digits'"):
        expand()


def test_members_of_a_sweep_with_a_partition_each_and_promotions_of_the_best_have_model_outlets():
    submit = {"task_id": "train", "trainer": CustomTrainer(double, {"number": 1})}
    with a_dag("partitions"):
        TrainJobOperator.partial(**submit, outlets=[MODEL]).expand(partition=["emea", "apac"])
    with a_dag("sensors"):
        train = TrainJobOperator.partial(**submit, wait_for_completion=False).expand(partition=["emea", "apac"])
        TrainJobSensor.partial(task_id="wait", outlets=[MODEL]).expand(job=train.output)
        promote = {"task_id": "promote", "model": "digits", "metric": "accuracy", "outlets": [MODEL]}
        PromoteModelOperator.partial(**promote).expand(job=train.output)

    @task_group
    def group(region):
        TrainJobSensor(task_id="wait", job=a_task(partition=region).output, outlets=[MODEL])

    with a_dag("groups"):
        group.expand(region=["emea", "apac"])


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_failed_training_does_not_update_the_model(trainjob_recorder, run_trainjob_dag, deferrable):
    trainjob_recorder.script(fails("UserCode"), completes(LEFT))
    updates = []
    for number in (1, 2):
        with a_dag(f"assets_{deferrable}_{number}") as dag:
            a_task(outlets=[MODEL], deferrable=deferrable)
        updates.append([update.extra["metrics"] for update in run_trainjob_dag(dag).asset_updates])

    assert updates == [[], [{"accuracy": 0.9}]]


def test_the_uri_of_a_model_asset_is_derived_from_its_name():
    assert MODEL.uri == "trainjob://models/digits"
    assert ModelAsset("digits", "s3://models/digits").uri == "s3://models/digits"
    assert MODEL.group == "model"


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="ModelAsset 'digits': mode must be one of max, min; got 'best'"):
        ModelAsset("digits", mode="best")


class Event:
    """An asset event as in a task's context."""

    def __init__(self, extra, partition_key=None):
        self.extra, self.partition_key = extra, partition_key


class Events:
    """The events of one Asset as in a task's context."""

    def __init__(self, extras):
        self._events = [Event(extra) for extra in extras]

    def __getitem__(self, asset):
        return self._events


def events(*metrics):
    return Events({"metrics": each} for each in metrics)


def test_the_first_model_is_an_improvement():
    assert MODEL.is_improved_by({"accuracy": 0.1}, events())


@pytest.mark.parametrize(("mode", "value", "better"), [("max", 0.91, True), ("max", 0.9, False), ("min", 0.89, True)])
def test_a_model_is_compared_with_the_last_event(mode, value, better):
    model = ModelAsset("digits", mode=mode)

    assert model.is_improved_by({"accuracy": value}, events({"accuracy": 0.99}, {"accuracy": 0.9})) is better


def test_an_event_without_metrics_does_not_prevent_an_improvement():
    assert MODEL.is_improved_by({"accuracy": 0.1}, Events([{}]))


@pytest.mark.parametrize("between", [None, {}, {"accuracy": None}, {"accuracy": float("nan")}, {"loss": 0.1}, "0.1"])
def test_a_model_without_the_metric_does_not_make_the_next_one_an_improvement(between):
    seen = events({"accuracy": 0.99}, *[between] * 3)

    assert not MODEL.is_improved_by({"accuracy": 0.1}, seen)
    assert MODEL.is_improved_by({"accuracy": np.float32(0.995)}, seen)
    assert MODEL.last(seen) == {"metrics": between}


class PagedEvents(list):
    """Events with partitions, which are read a page at a time as those of Airflow are."""

    def __init__(self, all_events):
        super().__init__(all_events)
        self._all, self._newest_first = all_events, False

    def __getitem__(self, key):
        return self if isinstance(key, ModelAsset) else super().__getitem__(key)

    def ascending(self, ascending):
        self._newest_first = not ascending
        return self

    def limit(self, count):
        self[:] = list(reversed(self._all))[:count] if self._newest_first else self._all[:count]
        return self


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    history=st.lists(
        st.tuples(st.sampled_from(["emea", "apac"]), st.sampled_from([0.5, 0.9, None, float("inf")])), max_size=9
    ),
    gap=st.sampled_from([0, 199, 200, 2500]),
    value=st.sampled_from([0.1, 0.7, 0.95]),
)
def test_the_last_event_of_the_partition_that_has_the_metric_is_compared(history, gap, value):
    extras = [(key, {"metrics": {"accuracy": number}}) for key, number in history] + [("apac", {"metrics": {}})] * gap
    seen = PagedEvents([Event(extra, key) for key, extra in extras])
    known = [number for key, number in history if key == "emea" and number in (0.5, 0.9)]

    assert MODEL.is_improved_by({"accuracy": value}, seen, "emea") is (not known or value > known[-1])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "0.9", True])
def test_a_model_whose_metric_is_no_finite_number_is_never_an_improvement(value):
    with pytest.raises(ValueError, match="the new model has no metric 'accuracy'; it has: loss"):
        MODEL.is_improved_by({"accuracy": value, "loss": 0.1}, events())


def test_a_model_without_the_metric_is_refused():
    with pytest.raises(ValueError, match="ModelAsset 'digits': the new model has no metric 'accuracy'; it has: loss"):
        MODEL.is_improved_by({"loss": 0.1}, events())


def test_a_task_can_compare_with_the_model_of_the_last_event(trainjob_recorder, run_trainjob_dag):
    gated = ModelAsset("gated-digits")
    trainjob_recorder.script(*(completes({"accuracy": accuracy}) for accuracy in (0.8, 0.7, 0.9)))
    states = []
    for number in (1, 2, 3):
        with a_dag(f"gate_{number}") as dag:
            train = a_task()

            @task.short_circuit(inlets=[gated])
            def is_better(result, inlet_events):
                return gated.is_improved_by(result, inlet_events)

            @task(outlets=[gated])
            def promote(result, outlet_events):
                outlet_events[gated].extra = {"metrics": result}

            is_better(train.output) >> promote(train.output)
        states.append(run_trainjob_dag(dag).states["promote"])

    assert states == ["success", "skipped", "success"]


def test_a_deadline_is_serialized_with_the_dag(run_trainjob_dag):
    from airflow_provider.testing.compat import DagSerialization

    with a_dag("late", deadline=late_run(timedelta(hours=6), "no new model")) as dag:

        @task
        def look():
            return 1

        look()
    known = json.dumps(DagSerialization.to_dict(dag)["dag"]["deadline"])

    assert "airflow_provider.deadlines.log_late_run" in known
    assert str(6 * 3600) in known
    assert run_trainjob_dag(dag).state == "success"


@pytest.fixture
def evaluated_deadline(run_trainjob_dag):
    """Return when a run would be late that starts now, by the scheduler's copy of the DAG, and the usual duration."""
    from airflow.models.dagrun import DagRun
    from airflow.serialization.serialized_objects import BaseSerialization
    from airflow.utils.session import create_session

    def evaluate(dag_id, alert, durations):
        with a_dag(dag_id, deadline=alert) as dag:
            task(lambda: 1, task_id="look")()
        runs = [run_trainjob_dag(dag).dag_run.run_id for _ in durations]
        with create_session() as session:
            found = session.query(DagRun).filter(DagRun.run_id.in_(runs), DagRun.dag_id == dag_id)
            for run, duration in zip(found, durations, strict=True):
                run.end_date = run.start_date + timedelta(seconds=duration)
            session.flush()
            copy = BaseSerialization.deserialize(BaseSerialization.serialize(alert))
            late = copy.reference.evaluate_with(session=session, interval=copy.interval, dag_id=dag_id)
            return late and (late - datetime.now(timezone.utc)).total_seconds()

    return evaluate


@needs_trigger_on_kill  # Added to Airflow with the same release.
def test_a_run_is_late_after_a_multiple_of_the_average_duration(evaluated_deadline):
    left = evaluated_deadline("usual", slower_than_usual(factor=2), [1000, 2000, 3000])
    assert left == pytest.approx(4000, abs=600)


@needs_trigger_on_kill
def test_no_run_is_late_before_there_are_enough_runs(evaluated_deadline):
    assert evaluated_deadline("first_runs", slower_than_usual(factor=2, min_runs=3), [1000, 2000]) is None


@pytest.mark.parametrize("arguments", [{"factor": 1}, {"factor": float("nan")}, {"min_runs": 0}, {"min_runs": 11}])
def test_a_deadline_that_says_nothing_is_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        slower_than_usual(**arguments)


def test_the_late_run_is_named_in_the_triggerer_log():
    run = {"dag_id": "nightly", "dag_run_id": "scheduled__2026-01-01"}
    said = asyncio.run(log_late_run("no new model", context={"dag_run": run}))

    assert said == "late DAG run: no new model (DAG nightly, run scheduled__2026-01-01)"


def test_the_dags_of_the_guide_train_and_promote_only_better_models(trainjob_dags, run_trainjob_dag, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "guides" / "airflow-assets.md").read_text()
    (text,) = re.findall(r"```python\n(# train_and_gate\.py\n.*?)^```$", page, re.M | re.S)
    (tmp_path / "train_and_gate.py").write_text(text)
    dags = trainjob_dags(tmp_path)
    run_trainjob_dag(dags["guide_assets_train"])
    first, second = (run_trainjob_dag(dags["guide_assets_gate"]) for _ in range(2))

    assert first.states == {"is_better": "success", "promote": "success"}
    assert first.xcom("promote") == "s3://models/1"
    assert second.states["promote"] == "skipped"
