"""Tasks and sensors follow the attempts of a training in the time that each other front end needs, by a scripted clock.

`tests/unit/test_attempt_budget.py` has the same table for the client and the command.
"""

from __future__ import annotations

import traceback

import pytest
import urllib3
from fake_cluster import Cluster
from scripted_attempts import PLANS, ask, create_scripted_client

from airflow_provider.compat import TaskDeferred
from airflow_provider.exceptions import TrainJobFailedError, TrainJobRejectedError
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainerContainer, RestartPolicy
from trainer_core.base.errors import InvalidRequestError
from trainer_core.client.waiting import compute_restart_delay

ENDLESS = [plan for plan in PLANS if plan.timeout is None]


def create_operator(plan, **arguments):
    client = create_scripted_client(plan.run)
    operator = TrainJobOperator(
        task_id="train",
        runtime="python",
        trainer=CustomTrainerContainer(image="custom:1"),
        options=[RestartPolicy(**plan.policy)],
        **arguments,
    )
    operator.hook.client = client
    return operator, client


def end_deferrals(task, client, context):
    """Run a deferrable task to its end, with what its triggers do."""
    start = task.execute
    while True:
        try:
            return start(context)
        except TaskDeferred as deferred:
            ref = deferred.trigger.ref
            name = ref["name"]
            outcome = client.wait(client.get_job_ref(name), restarts=False)
            client.backend.clock.sleep(compute_restart_delay(outcome, client.backend.clock) or 0.0)
            event = {"ref": ref, "outcome": outcome.to_dict()}
            start = lambda context, event=event: task.execute_complete(context, event)  # noqa: E731


def measure(client, run):
    """Return how long a task takes that fails in the end, and how many TrainJobs there are then."""
    start = client.backend.clock.now
    with pytest.raises(TrainJobFailedError):
        run()
    return client.backend.clock.now - start, False, len(client.backend.jobs)


@pytest.mark.parametrize("plan", ENDLESS, ids=str)
def test_an_operator_follows_in_its_worker(plan):
    operator, client = create_operator(plan)
    assert measure(client, lambda: operator.execute({"ti": StandInTaskInstance()})) == plan.expect()


@pytest.mark.parametrize("plan", ENDLESS, ids=str)
def test_a_deferred_operator_follows(plan):
    operator, client = create_operator(plan, deferrable=True)
    assert measure(client, lambda: end_deferrals(operator, client, {"ti": StandInTaskInstance()})) == plan.expect()


def create_sensor(plan, **arguments):
    client = create_scripted_client(plan.run)
    ref = client.submit(ask(name="job", restart_policy=plan.policy))
    sensor = TrainJobSensor(task_id="wait", job=ref, restarts=True, **arguments)
    sensor.hook.client = client
    return sensor, client


@pytest.mark.parametrize("plan", ENDLESS, ids=str)
def test_a_sensor_follows_and_no_poke_takes_time(plan):
    sensor, client = create_sensor(plan)
    context = {"ti": StandInTaskInstance("wait")}

    def poke():
        while not sensor.poke(context).is_done:
            client.backend.clock.sleep(1)

    seconds, timed_out, jobs = measure(client, poke)
    assert (seconds, timed_out, jobs) == plan.expect()


@pytest.mark.parametrize("plan", ENDLESS, ids=str)
def test_a_deferred_sensor_follows(plan):
    sensor, client = create_sensor(plan, deferrable=True)
    assert measure(client, lambda: end_deferrals(sensor, client, {"ti": StandInTaskInstance("wait")})) == plan.expect()


def test_ten_frames_lead_from_execute_to_the_create_of_a_backend(monkeypatch):
    frames = []

    def create(*arguments):
        names = [frame.name for frame in traceback.extract_stack()]
        frames.extend(names[names.index("_start_job") - 1 :])
        raise InvalidRequestError("it is refused")

    operator, client = create_operator(ENDLESS[0])
    monkeypatch.setattr(client.backend, "create", create)
    with pytest.raises(TrainJobRejectedError, match="it is refused"):
        operator.execute({"ti": StandInTaskInstance()})
    assert (frames[0], frames[-1], len(frames) <= 10) == ("execute", "create", True)


def test_twelve_frames_lead_from_execute_to_the_request_that_creates_a_trainjob_on_a_cluster(tmp_path, monkeypatch):
    stacks = []
    request = urllib3.PoolManager.request

    def record(pool, method, url, **arguments):
        names = [frame.name for frame in traceback.extract_stack()]
        if method == "POST":
            stacks.append(names[names.index("_start_job") - 1 : -1])
        return request(pool, method, url, **arguments)

    with Cluster(namespaces=["team"], controllers=False) as cluster:
        operator = TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainerContainer(image="custom:1"),
            backend="kubernetes",
            backend_config={"config_file": str(cluster.kubeconfig(tmp_path / "config", "team"))},
            trainjob_conn_id=None,
            wait_for_completion=False,
        )
        monkeypatch.setattr(urllib3.PoolManager, "request", record)
        operator.execute({"ti": StandInTaskInstance()})
        monkeypatch.undo()
    (frames,) = stacks
    assert (frames[0], frames[-1], len(frames) <= 12) == ("execute", "_send_request", True)
