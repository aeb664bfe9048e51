"""Many triggers in one event loop, with failures of the cluster and the triggerer."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, XComResult
from airflow.sdk.execution_time.supervisor import set_supervisor_comms
from fake_cluster import Cluster

from airflow_provider import cancellation, client_cache
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.task_log import LOG_KEY
from airflow_provider.testing.tasks import StandInTaskInstance
from airflow_provider.triggers import deferred_log, trainjob
from airflow_provider.triggers.trainjob import TrainJobTrigger
from trainer_core import CustomTrainerContainer, KubernetesBackendConfig, TrainerClient
from trainer_core.backends import watch_follower
from trainer_core.k8s import informer
from trainer_core.model.jobs import CREATED, RUNNING
from trainer_core.model.request import TrainJobRequest

TRAINER = {"kind": "container", "image": "registry.local/train:1"}
MANY = 60


@pytest.fixture
def cluster():
    """A cluster whose time advances only with `tick`."""
    with Cluster(delay=None) as cluster:
        cluster.lives.set("*", "complete")
        yield cluster


@pytest.fixture(autouse=True)
def time_to_read(monkeypatch):
    """Increase the timeout of the final log read for busy machines."""
    monkeypatch.setattr(deferred_log, "_FINAL_READ_TIMEOUT", 60.0)


@pytest.fixture
def no_time_to_read(time_to_read, monkeypatch):
    """Restore the timeout of the final log read, for logs that hang."""
    monkeypatch.setattr(deferred_log, "_FINAL_READ_TIMEOUT", 0.5)


@pytest.fixture
def client(cluster):
    return TrainerClient(KubernetesBackendConfig(client_configuration=cluster.configuration()))


@pytest.fixture
def submit(client):
    def make(name="job"):
        return client.submit(TrainJobRequest.parse({"name": name, "runtime": {"name": "python"}, "trainer": TRAINER}))

    return make


@pytest.fixture
def wait_for(cluster, tmp_path):
    """Create a trigger from plain data, as a triggerer does, with a stand-in task instance."""
    config = {"config_file": str(cluster.kubeconfig(tmp_path / "config")), "namespace": "default"}

    def make(ref, **arguments):
        made = TrainJobTrigger(ref.to_dict(), backend="kubernetes", backend_config=config, **arguments)
        _, stored = made.serialize()
        trigger = TrainJobTrigger(**json.loads(json.dumps(stored)))
        trigger.task_instance = StandInTaskInstance(run_id="run")
        return trigger

    return make


class Supervisor:
    """Supervisor that stores XComs and counts requests."""

    def __init__(self):
        self.xcoms = {}
        self.sent = 0

    def send(self, msg):
        self.sent += 1
        if type(msg).__name__ == "SetXCom":
            self.xcoms[msg.key] = msg.value
            return None
        if type(msg).__name__ == "GetConnection":
            return ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND)
        return XComResult(key=msg.key, value=self.xcoms.get(msg.key))


@pytest.fixture(autouse=True)
def supervisor():
    supervisor = Supervisor()
    with set_supervisor_comms(supervisor):
        yield supervisor


async def fired(trigger):
    (event,) = [event.payload async for event in trigger.run()]
    return json.loads(json.dumps(event))


async def until(condition):
    """Wait until a function returns a true value; limited by pytest's timeout."""
    while not condition():
        await asyncio.sleep(0.01)


async def ends(cluster, *tasks):
    """Advance the time until all these have finished; return their results."""
    while not all(task.done() for task in tasks):
        cluster.tick()
        await asyncio.sleep(0.02)
    return [task.result() for task in tasks]


@asynccontextmanager
async def waiting(*triggers):
    """Running triggers; the remaining ones are cancelled after the test."""
    tasks = [asyncio.create_task(fired(trigger)) for trigger in triggers]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def have_pods(cluster):
    """Wait until each job has its pod: only pods that exist move on with a tick."""
    cluster.until(lambda: len(cluster.objects("pods")) == len(cluster.objects("TrainJob")))


def runs(cluster):
    """Start all jobs, which then print two lines."""
    have_pods(cluster)

    def is_running():
        cluster.tick()
        return any(pod["status"].get("phase") == "Running" for pod in cluster.objects("pods"))

    cluster.until(is_running)


async def test_all_triggers_of_a_connection_share_one_watch(cluster, submit, wait_for):
    refs = [submit(f"job-{number}") for number in range(MANY)]
    cluster.forget_requests()
    async with waiting(*map(wait_for, refs)) as tasks:
        await until(lambda: cluster.watches == 2)
        events = await ends(cluster, *tasks)
        reads = [request for request in cluster.requests if request.verb in ("get", "list")]
        asked = [request for request in reads if not request.path.startswith("/api/v1/namespaces/default/pods/")]
    assert {event["outcome"]["status"] for event in events} == {"Complete"}
    # Lists of jobs and pods. The first trigger lists its own job, and so do a few that start during the first list.
    assert cluster.watches == 2
    assert len(asked) < MANY / 2


async def test_a_slow_list_request_does_not_make_each_trigger_poll(cluster, submit, wait_for, monkeypatch):
    monkeypatch.setattr(watch_follower, "_FIRST_LIST_SECONDS", 0.2)
    refs = [submit(f"job-{number}") for number in range(MANY)]
    cluster.faults.next(hang=3, path="trainjobs", method="GET", times=8)
    cluster.forget_requests()
    async with waiting(*map(wait_for, refs)) as tasks:
        events = await ends(cluster, *tasks)
        asked = [request for request in cluster.requests if request.verb == "get"]
        # Counts the requests before the first response, independent of its time.
        asked = [request for request in asked if request.time < asked[0].time + 2.5]
    assert asked
    assert len(asked) <= 8
    assert {event["outcome"]["status"] for event in events} == {"Complete"}


async def test_a_change_is_delivered_at_once(cluster, submit, wait_for):
    async with waiting(wait_for(submit())) as (task,):
        runs(cluster)
        await until(lambda: cluster.watches == 2)
        cluster.tick()
        (event,) = await asyncio.wait_for(ends(cluster, task), 300)
    assert event["outcome"]["status"] == "Complete"


async def test_a_training_that_ended_before_the_watch_is_delivered_at_once(cluster, client, submit, wait_for):
    ref = submit()
    cluster.until(lambda: cluster.tick() is not None and client.observe(ref).outcome)
    event = await asyncio.wait_for(fired(wait_for(ref)), 300)
    assert event["outcome"]["result"] == {"loss": 0.25}


async def test_a_thousand_concurrent_triggers_create_one_client(cluster, wait_for, submit):
    trigger = wait_for(submit())
    made = await asyncio.gather(*(trigger._get_client() for _ in range(1000)))
    assert len({id(client) for client in made}) == 1


async def test_a_client_is_created_again_after_some_minutes(monkeypatch, wait_for, submit):
    trigger = wait_for(submit())
    before = await trigger._get_client()
    monkeypatch.setattr(client_cache, "_KEEP_SECONDS", 0.0)
    assert await trigger._get_client() is not before


async def test_a_failed_client_creation_is_retried():
    for _ in range(2):
        with pytest.raises(ValueError, match="unknown setting hme"):
            await client_cache.get_client(None, "local", {"hme": "/x"})


class Clock:
    """A clock that can be advanced, so that an outage of ten minutes takes no time."""

    ahead = 0.0

    def monotonic(self):
        return time.monotonic() + self.ahead

    time = staticmethod(time.time)


async def test_an_outage_of_ten_minutes_is_tolerated(cluster, submit, wait_for, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(informer, "_DEFAULT_TIMINGS", informer.WatchTimings(error_grace=0.1))
    monkeypatch.setattr(trainjob, "time", clock)
    async with waiting(wait_for(submit())) as (task,):
        runs(cluster)
        await until(lambda: cluster.watches == 2)
        cluster.faults.at_random(1.0, seed=1)
        cluster.break_watches()
        for _ in range(10):
            clock.ahead += 60
            cluster.forget_requests()
            await until(lambda: task.done() or cluster.requests)
            assert not task.done()
        cluster.faults.clear()
        (event,) = await ends(cluster, task)
    assert event["outcome"]["status"] == "Complete"


async def test_a_job_that_ends_during_an_outage_is_delivered_after_it(cluster, client, submit, wait_for):
    ref = submit()
    async with waiting(wait_for(ref)) as (task,):
        await until(lambda: cluster.watches == 2)
        have_pods(cluster)
        cluster.faults.at_random(1.0, seed=1)
        cluster.break_watches()
        for _ in range(10):
            cluster.tick()
        cluster.faults.clear()
        assert (await asyncio.wait_for(task, 300))["outcome"]["status"] == "Complete"


async def test_a_watch_with_an_expired_resource_version_lists_again(cluster, submit, wait_for):
    async with waiting(wait_for(submit())) as (task,):
        await until(lambda: cluster.watches == 2)
        cluster.compact()
        cluster.break_watches()
        (event,) = await ends(cluster, task)
    assert event["outcome"]["status"] == "Complete"


async def test_a_rotated_token_is_used(cluster, submit, wait_for, tmp_path):
    async with waiting(wait_for(submit())) as (task,):
        await until(lambda: cluster.watches == 2)
        cluster.tokens = ["another"]
        cluster.kubeconfig(tmp_path / "config")
        cluster.break_watches()
        (event,) = await ends(cluster, task)
    assert event["outcome"]["status"] == "Complete"


async def test_a_restarted_triggerer_cancels_no_job_and_repeats_no_line(
    cluster, client, submit, wait_for, task_log, supervisor
):
    ref = submit()
    async with waiting(wait_for(ref)):
        runs(cluster)
        await until(lambda: LOG_KEY in supervisor.xcoms)
    assert client.observe(ref).outcome is None
    async with waiting(wait_for(ref)) as (task,):
        (event,) = await ends(cluster, task)
    assert event["log"]["complete"]
    assert [line for line in task_log().splitlines() if "epoch" in line] == ["[node-0] epoch 1", "[node-0] epoch 2"]


async def test_two_triggerers_with_the_same_trigger_deliver_the_same_event(cluster, submit, wait_for):
    ref = submit()
    async with waiting(wait_for(ref), wait_for(ref)) as tasks:
        one, other = await ends(cluster, *tasks)
    assert one["outcome"] == other["outcome"]


def has_been_given_up(cluster, name):
    conditions = cluster.get("TrainJob", name)["status"].get("conditions", [])
    return "Suspended" in [condition["type"] for condition in conditions]


async def test_fail_fast_cancels_a_job_that_cannot_start(cluster, submit, wait_for):
    cluster.lives.set("*", "invalid-image-name")
    impatient, patient = wait_for(submit("one"), fail_fast=True), wait_for(submit("other"), fail_fast=False)
    have_pods(cluster)
    async with waiting(impatient, patient) as (ended, goes_on):
        for _ in range(8):
            cluster.tick()
        await ended
        # The end of a later job arrives over the same watch after all changes of the patient one.
        cluster.lives.set("later", "complete")
        async with waiting(wait_for(submit("later"))) as (later,):
            await ends(cluster, later)
        assert not goes_on.done()
    assert has_been_given_up(cluster, "one")
    assert not has_been_given_up(cluster, "other")


async def test_the_log_is_written_while_the_task_is_deferred(cluster, submit, wait_for, task_log):
    async with waiting(wait_for(submit())):
        runs(cluster)
        await until(lambda: "epoch 2" in task_log())
        cluster.write_log(cluster.objects("pods")[0]["metadata"]["name"], "epoch 3")
        await until(lambda: "epoch 3" in task_log())
    assert task_log().count("epoch 1") == 1


async def test_progress_is_an_xcom_while_the_task_is_deferred(cluster, submit, wait_for, supervisor):
    async with waiting(wait_for(submit())):
        runs(cluster)
        line = '[trainjob:progress] {"step": 3, "total": 10, "metrics": {"loss": 0.5}}'
        cluster.write_log(cluster.objects("pods")[0]["metadata"]["name"], line)
        await until(lambda: deferred_log.PROGRESS_KEY in supervisor.xcoms)
    shown = {key: value for key, value in supervisor.xcoms["progress"].items() if value is not None}
    assert shown == {"step": 3, "total": 10, "metrics": {"loss": 0.5}, "percentage": 30}


async def test_many_logs_are_read_at_a_limited_rate(cluster, submit, wait_for, supervisor):
    refs = [submit(f"job-{number}") for number in range(MANY)]
    async with waiting(*map(wait_for, refs)):
        runs(cluster)
        # From here on all triggers share the rate. After a delay of this process, all may read at the same moment, and
        # again an interval later: an average is below the limit only from the third read of each on.
        await until(lambda: len(count_reads(cluster)) == MANY)
        before, sent, begin = count_reads(cluster), supervisor.sent, time.monotonic()
        await until(lambda: all(count >= before[path] + 3 for path, count in count_reads(cluster).items()))
        read, wrote, seconds = count_reads(cluster) - before, supervisor.sent - sent, time.monotonic() - begin
    assert read.total() / seconds < 35
    assert wrote / seconds < 35
    # Half of the interval: the server of a busy machine may note a read later than it was sent.
    assert min(list_gaps(cluster, begin)) > 1.5


def list_gaps(cluster, begin):
    """Return the seconds between two reads of the same log; those of 60 triggers with 20 reads a second are about 3."""
    for log in count_reads(cluster):
        times = [request.time for request in list(cluster.requests) if request.path == log and request.time > begin]
        yield from (later - earlier for earlier, later in pairwise(times))


def count_reads(cluster):
    """Return how often each log was read, by its path."""
    return Counter(request.path for request in list(cluster.requests) if request.path.endswith("/log"))


async def test_many_triggers_without_events_recheck_their_jobs_at_different_times(
    cluster, submit, wait_for, monkeypatch
):
    monkeypatch.setattr(watch_follower, "_STATUS_CHECK_SECONDS", {CREATED: 0.0, RUNNING: 0.0})
    monkeypatch.setattr(trainjob, "_RECHECK_SECONDS", (0.1, 0.2))
    refs = [submit(f"job-{number}") for number in range(MANY)]
    # A check that was due before the requests are counted can arrive later.
    begin = time.monotonic()
    async with waiting(*map(wait_for, refs)):
        await until(lambda: cluster.watches == 2)
        cluster.forget_requests()
        await until(lambda: cluster.counts["get trainjobs"] >= 20)
        asked, seconds = cluster.counts["get trainjobs"], time.monotonic() - begin
    assert asked <= 2 + 5 * seconds


async def test_a_log_read_that_hangs_does_not_delay_the_outcome(cluster, submit, wait_for, no_time_to_read):
    async with waiting(wait_for(submit())) as (task,):
        runs(cluster)
        cluster.faults.next(hang=50, path="/log", method="GET", times=1)
        await until(lambda: cluster.faults.counts)
        (event,) = await ends(cluster, task)
    assert event["outcome"]["status"] == "Complete"
    assert not event["log"]["complete"]


class SilentSupervisor(Supervisor):
    """Blocks until it is released."""

    def __init__(self):
        super().__init__()
        self.may_answer = threading.Event()

    def send(self, msg):
        self.may_answer.wait(300)
        return super().send(msg)


async def test_an_unavailable_airflow_does_not_delay_the_outcome(cluster, submit, wait_for, no_time_to_read):
    supervisor = SilentSupervisor()
    with set_supervisor_comms(supervisor):
        async with waiting(wait_for(submit())) as (task,):
            runs(cluster)
            (event,) = await ends(cluster, task)
            answered = supervisor.may_answer.is_set()
            supervisor.may_answer.set()
    assert event["outcome"]["status"] == "Complete"
    assert not answered


async def test_a_finished_trigger_leaves_no_tasks_or_counters(cluster, submit, wait_for):
    async with waiting(wait_for(submit())) as (task,):
        await ends(cluster, task)
    gc.collect()
    assert deferred_log._Counters.active == 0
    assert deferred_log._Counters.finishing == 0


@pytest.mark.parametrize("fault", [{"hang": 600}, {"status": 503}])
def test_killing_a_worker_does_not_wait_for_an_unavailable_cluster(cluster, tmp_path, fault, monkeypatch):
    monkeypatch.setattr(cancellation, "_SIGNAL_HANDLER_SECONDS", 0.1)
    config = {"config_file": str(cluster.kubeconfig(tmp_path / "config")), "namespace": "default"}
    trainer = CustomTrainerContainer(image="registry.local/train:1")
    operator = TrainJobOperator(
        task_id="train",
        runtime="python",
        trainer=trainer,
        backend="kubernetes",
        backend_config=config,
        wait_for_completion=False,
    )
    operator.execute({"ti": StandInTaskInstance()})
    cluster.faults.next(path="trainjobs", times=100, **fault)
    operator.on_kill()
    assert "cancel-trainjob" in [thread.name for thread in threading.enumerate()]
