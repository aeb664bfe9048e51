"""SearchOperator and its trigger with real local trials: retries, clears, kills and what a task leaves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time

import pytest
from airflow.sdk import DAG

from airflow_provider.assets import ModelAsset
from airflow_provider.compat import AirflowFailException, TaskDeferred
from airflow_provider.exceptions import TrainJobInterruptedError, TrainJobSearchFailedError, TrainJobTimeoutError
from airflow_provider.operators.search import SearchOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.testing.tasks import StandInTaskInstance, run_task
from airflow_provider.triggers.search import SearchTrigger
from trainer_core import CustomTrainer, Objective, RandomSearch, Search, TrialConfig
from trainer_core.search.driver import SearchDriver

# Searches of several trainings, some of which are killed.
pytestmark = pytest.mark.slow

SPACE = {"x": Search.uniform(-1, 1), "kind": ["a", "b"]}
SECONDS = 300.0


def square(x: float, kind: str, offset: float = 0.0) -> dict:
    return {"metrics": {"loss": x * x + offset}, "artifacts": {"model": f"file:///models/{kind}"}}


def wait_for_gate(x: float, gate: str) -> dict:
    import pathlib
    import time

    while not pathlib.Path(gate).exists():
        time.sleep(0.02)
    return {"loss": x}


def fail(x: float) -> dict:
    raise ValueError("no data")


def build(func=square, args=None, space=SPACE, trials=3, parallel=2, **arguments):
    return SearchOperator(
        **{
            "task_id": "tune",
            "runtime": "python",
            "trainer": CustomTrainer(func, func_args=args),
            "search_space": space,
            "trial_config": TrialConfig(num_trials=trials, parallel_trials=parallel),
            "algorithm": RandomSearch(random_state=1),
            **arguments,
        }
    )


def build_waiting(gate, **arguments):
    return build(wait_for_gate, {"gate": str(gate)}, {"x": Search.uniform(-1, 1)}, **arguments)


def list_trials(client):
    """Return the parameters of the trials, by the name of their job."""
    jobs = {job.name: client.get_job_request(job.name).context.search for job in client.list_jobs()}
    return {name: entry.parameters for name, entry in jobs.items() if entry is not None and entry.kind == "run"}


def list_running(client):
    return [job.name for job in client.list_jobs() if job.status in ("Created", "Running")]


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def gate(tmp_path):
    """File that trials wait for."""
    return tmp_path / "gate"


@pytest.mark.parametrize("deferrable", [False, True])
def test_the_task_returns_the_best_trial(home, client, deferrable):
    finished = run_task(build(deferrable=deferrable))
    assert finished.error is None
    best = min(list_trials(client).items(), key=lambda trial: trial[1]["x"] ** 2)
    value = best[1]["x"] ** 2
    assert finished.returned == {
        "parameters": best[1],
        "value": value,
        "trial": int(best[0].split("-")[1]),
        "job": best[0],
        "result": square(**best[1]),
    }
    assert len(list_trials(client)) == 3
    assert (finished.xcoms["parameters"], finished.xcoms["best_value"]) == (best[1], value)
    assert finished.xcoms["metrics"] == {"loss": value}
    assert finished.xcoms["best_ref"]["name"] == best[0]
    assert finished.xcoms["status"] == "Complete"
    assert [trial["value"] for trial in finished.xcoms["trials"]] == sorted(
        parameters["x"] ** 2 for parameters in list_trials(client).values()
    )


def test_a_worker_is_woken_only_for_what_is_to_be_created_and_for_the_end(home):
    finished = run_task(build(trials=3, parallel=3, deferrable=True))
    assert finished.state == "success"
    # The three trials together, the record that ends the search, and its outcome.
    assert len(finished.triggers) <= 3


def test_the_trigger_holds_no_code_and_no_secret(home):
    finished = run_task(build(deferrable=True, trials=2, args={"offset": 0.5}))
    text = json.dumps([trigger.serialize() for trigger in finished.triggers])
    assert "SearchTrigger" in text
    assert "def square" not in text
    assert "offset" not in text


def test_a_retry_returns_the_outcome_and_starts_nothing(home, client):
    finished = run_task(build(retries=1))
    names = set(list_trials(client))
    again = finished.retry()
    assert again.returned == finished.returned
    assert set(list_trials(client)) == names


@pytest.mark.slow
def test_a_worker_that_is_killed_between_two_trials_is_followed_by_one_with_the_same_trials(home, client):
    undisturbed = run_task(build(trials=4))
    expected = {json.dumps(each) for each in list_trials(client).values()}
    program = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from airflow_provider.testing.tasks import StandInTaskInstance
from test_search_operator import build
from trainer_core.search.driver import SearchDriver
create, left = SearchDriver._create_run, [3]
def die(self, *arguments):
    left[0] -= 1
    return create(self, *arguments) if left[0] else os.kill(os.getpid(), signal.SIGKILL)
SearchDriver._create_run = die
build(trials=4, retries=1).execute({{"ti": StandInTaskInstance("tune", run_id="killed", max_tries=1)}})
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    before = set(list_trials(client))
    second = StandInTaskInstance("tune", run_id="killed", max_tries=1).next_try()
    assert build(trials=4, retries=1).execute({"ti": second})["parameters"] == undisturbed.returned["parameters"]
    trials = list_trials(client)
    assert len(before) == 4 + 2
    assert before < set(trials)
    assert len(trials) == 8
    assert {json.dumps(each) for each in trials.values()} == expected


def test_a_trigger_continues_where_another_one_was_ended(home, gate, client, monkeypatch):
    operator, ti = build_waiting(gate, deferrable=True, trials=2), StandInTaskInstance("tune")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute({"ti": ti})
    _, arguments = deferred.value.trigger.serialize()
    arguments = json.loads(json.dumps(arguments))

    async def restart():
        waits = asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(SearchDriver, "wait_async", lambda *_: waits.set() or asyncio.Event().wait())
            first = asyncio.create_task(anext(SearchTrigger(**arguments).run()))
            await waits.wait()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        gate.touch()
        return await asyncio.wait_for(anext(SearchTrigger(**arguments).run()), SECONDS)

    event = asyncio.run(restart())
    assert event.payload["search"] == "must_create"
    assert len(list_trials(client)) == 2


def test_a_cleared_task_ends_the_trials_and_starts_another_search(home, gate, client):
    first = StandInTaskInstance("tune")
    with pytest.raises(TaskDeferred):
        build_waiting(gate, deferrable=True).execute({"ti": first})
    old = set(list_running(client))
    with pytest.raises(TaskDeferred):
        build_waiting(gate, deferrable=True).execute({"ti": first.next_try(cleared=True)})
    assert len(old) == 2
    assert len(list_running(client)) == 2
    assert old.isdisjoint(list_running(client))


@pytest.mark.parametrize(("on_kill", "running"), [("cancel", 0), ("keep", 2)])
def test_a_killed_task_cancels_its_search_if_asked(home, gate, client, on_kill, running):
    ti = StandInTaskInstance("tune")
    operator = build_waiting(gate, on_kill=on_kill)
    errors = []

    def execute():
        try:
            operator.execute({"ti": ti})
        except TrainJobInterruptedError as error:
            errors.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    wait_until(lambda: operator._is_waiting and len(list_running(client)) == 2)
    ti.state = "failed"
    # Airflow calls it in a signal handler of the thread that waits; the end of a trial wakes that thread here.
    operator._is_waiting = False
    operator.on_kill()
    assert len(list_running(client)) == running
    gate.touch()
    thread.join(SECONDS)
    assert len(list_trials(client)) == 2 or on_kill == "keep"
    wait_until(lambda: not list_running(client))


def test_a_search_is_cancelled_when_its_deferred_task_is_ended(home, gate, client):
    ti = StandInTaskInstance("tune")
    with pytest.raises(TaskDeferred) as deferred:
        build_waiting(gate, deferrable=True).execute({"ti": ti})
    _, arguments = deferred.value.trigger.serialize()
    trigger = SearchTrigger(**arguments)
    trigger.task_instance = None
    asyncio.run(trigger.on_kill())
    assert list_running(client) == []
    retried = build_waiting(gate, deferrable=True)
    with pytest.raises(TrainJobSearchFailedError, match="cancelled"):
        retried.execute({"ti": ti.next_try()})


def test_the_search_is_cancelled_at_the_deadline_of_its_task(home, gate, client):
    ti = StandInTaskInstance("tune")
    operator = build_waiting(gate, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute({"ti": ti})
    _, arguments = deferred.value.trigger.serialize()
    event = asyncio.run(anext(SearchTrigger(**{**arguments, "deadline": time.time() - 1}).run()))
    with pytest.raises(TrainJobTimeoutError):
        operator.execute_complete({"ti": ti}, event.payload)
    assert list_running(client) == []


def test_each_mapped_task_has_a_separate_search(home, client):
    with DAG("regions", schedule=None):
        mapped = SearchOperator.partial(
            task_id="tune",
            runtime="python",
            trainer=CustomTrainer(square),
            search_space={"x": Search.uniform(-1, 1)},
            trial_config={"num_trials": 1},
        ).expand(func_args=[{"kind": "eu"}, {"kind": "us"}])
    kinds = [
        run_task(SearchOperator(**{**mapped.partial_kwargs, "task_id": "tune", "func_args": args}), map_index=index)
        for index, args in enumerate([{"kind": "eu"}, {"kind": "us"}])
    ]
    assert [each.returned["result"]["artifacts"]["model"] for each in kinds] == [
        "file:///models/eu",
        "file:///models/us",
    ]
    assert len(list_trials(client)) == 2


def test_each_sample_of_a_random_search_can_be_a_mapped_task(home):
    samples = RandomSearch(random_state=1).sample(SPACE, 3)
    with DAG("sweep", schedule=None):
        mapped = TrainJobOperator.partial(task_id="sweep", runtime="python", trainer=CustomTrainer(square)).expand(
            func_args=samples
        )
    assert mapped.expand_input.value == {"func_args": samples}
    operator = TrainJobOperator(task_id="sweep", runtime="python", trainer=CustomTrainer(square), func_args=samples[0])
    assert run_task(operator).returned["metrics"]["loss"] == samples[0]["x"] ** 2


def test_numbers_of_the_search_can_be_templates(home, client):
    operator = build(trial_config={"num_trials": "{{ params.trials }}"}, args={"offset": "{{ params.offset }}"})
    assert run_task(operator, params={"trials": 2, "offset": 2}).returned["value"] >= 2
    assert len(list_trials(client)) == 2


def needs(x: float, kind: str) -> dict[str, float]:
    return {"loss": x}


@pytest.mark.parametrize("space", [{"x": {"uniform": [0, "{{ params.high }}"]}, "kind": ["a"]}, "{{ params.space }}"])
def test_a_space_can_have_templates_for_arguments_without_a_default(space):
    operator = SearchOperator(task_id="tune", trainer=CustomTrainer(needs), runtime="python", search_space=space)
    assert operator.search == {"search_space": space}
    assert operator.spec["trainer"]["code"].get("args", {}) == {}


def test_an_unknown_parameter_is_refused_also_if_its_values_are_templates():
    with pytest.raises(ValueError, match="needs has no parameter z"):
        SearchOperator(
            task_id="tune", trainer=CustomTrainer(needs), runtime="python", search_space={"z": ["{{ ds }}"], "x": [1]}
        )


def test_the_definition_is_plain_data_in_the_rendered_template():
    operator = build()
    assert json.loads(json.dumps(operator.search)) == {
        "search_space": {"x": {"uniform": [-1.0, 1.0]}, "kind": ["a", "b"]},
        "trial_config": {"num_trials": 3, "parallel_trials": 2},
        "algorithm": {"RandomSearch": {"random_state": 1}},
    }
    assert "x" not in operator.spec["trainer"]["code"].get("args", {})


def test_a_search_whose_trials_all_fail_fails_without_retries(home, client):
    finished = run_task(build(fail, space={"x": [1, 2, 3, 4]}, retries=2))
    assert isinstance(finished.error, AirflowFailException)
    assert isinstance(finished.error, TrainJobSearchFailedError)
    assert "ValueError: no data" in str(finished.error)
    assert finished.xcoms["status"] == "Failed"
    assert "ValueError: no data" in finished.xcoms["trials"][0]["reason"]


def test_the_event_of_a_model_is_that_of_the_best_trial(home):
    model = ModelAsset("digits", metric="loss", mode="min")
    finished = run_task(build(outlets=[model]))
    extra = finished.get_asset_extra(model)
    assert extra["job"] == finished.returned["job"]
    assert extra["metrics"]["loss"] == finished.returned["value"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": {"rate": [1]}}, "square has no parameter rate"),
        ({"space": {}}, "search_space must be a dict of at least one parameter"),
        ({"space": {"x": [1]}}, "square requires kind"),
        ({"wait_for_completion": False}, "always waits"),
        ({"on_clear": "ask"}, "clearing always starts another search; remove on_clear"),
        ({"algorithm": {"Hyperband": {}}}, "algorithm must be one of RandomSearch"),
        ({"trial_config": {"num_trials": 0}}, "num_trials"),
        ({"objectives": [Objective("a"), Objective("a")]}, "twice"),
    ],
)
def test_an_invalid_definition_is_refused_when_the_dag_is_parsed(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
