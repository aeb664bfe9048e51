"""Submitters, supervisors and engines that are killed or stopped: each job runs once or not at all, never twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import container_engine
import psutil
import pytest
from container_submitter import EXPECTED_LOG, build_request
from own_engine import PATIENCE, OwnEngine, wait_until

from trainer_core import Checkpoints, CustomTrainer, Name, Owner, RestartPolicy, TrainerClient
from trainer_core.backends.container import job_journal, names, paths, supervisor
from trainer_core.backends.local.processes import kill_job_processes
from trainer_core.base.errors import BackendUnavailableError, JobElsewhereError, JobNotFoundError
from trainer_core.model.jobs import Category, TrainJobRef
from trainer_core.testing.training_functions import exit_in_turn, return_value, run_forever

HERE = Path(__file__).parent
#: Requests and process starts of a submission: four reads, the identity of the engine and the claim (each sent in two
#: pieces), and the supervisor.
SUBMIT_KILL_POINTS = (1, 6, 8, 9, 10)
#: Requests while a job with two nodes runs: it creates containers from the 9th on, records their launch with the 18th,
#: starts them with the 20th and 21st, and then waits for their end.
RUN_KILL_POINTS = (2, 7, 11, 17, 20, 21, 27)
#: Changes while a job with one node fails twice: the restart's entry, its container, launch and start, and the end.
RESTART_KILL_POINTS = (5, 6, 7, 8, 9)


def run_program(sandbox, what, name, number):
    """Run a submitter or supervisor that kills itself at its n-th request; 0 for never."""
    arguments = json.dumps({"what": what, "folder": str(sandbox.folder), "name": name, "number": number})
    path = os.pathsep.join([str(HERE), str(HERE.parent / "fakes"), str(HERE.parents[1])])
    command = [sys.executable, str(HERE / "container_submitter.py"), arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)


def run_programs(sandbox, what, numbers):
    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(lambda number: run_program(sandbox, what, f"job-{number}", number), numbers))


def wait_for_all(client, refs):
    with ThreadPoolExecutor(9) as threads:
        return list(threads.map(lambda ref: client.wait(ref, timeout=PATIENCE), refs))


@pytest.mark.deep
def test_a_submitter_killed_at_any_request_leaves_one_job_or_none(sandbox):
    client = sandbox.client()
    run_programs(sandbox, "submit", SUBMIT_KILL_POINTS)
    created = client.list_jobs()
    assert 0 < len(created) < len(SUBMIT_KILL_POINTS)
    # A retry attaches to the job, or creates it.
    refs = [client.submit(build_request(client, f"job-{number}")) for number in SUBMIT_KILL_POINTS]
    assert {outcome.status for outcome in wait_for_all(client, refs)} == {"Complete"}
    assert sorted(job.name for job in client.list_jobs()) == sorted(f"job-{number}" for number in SUBMIT_KILL_POINTS)
    logs = [list(client.get_job_logs(ref.name, step=f"node-{rank}")) for ref in refs for rank in (0, 1)]
    assert logs == [EXPECTED_LOG] * len(logs)
    assert len(sandbox.engine.list_containers(sandbox.label)) == 2 * len(SUBMIT_KILL_POINTS)


@pytest.mark.deep
def test_a_job_continues_after_its_supervisor_was_killed_at_any_request(sandbox):
    client = sandbox.client()
    run_programs(sandbox, "run", RUN_KILL_POINTS)
    jobs = client.list_jobs()
    assert len(jobs) == len(RUN_KILL_POINTS)
    ended = wait_for_all(client, [client.get_job_ref(job.name) for job in jobs])
    assert {outcome.status for outcome in ended} == {"Complete"}
    logs = [list(client.get_job_logs(job.name, step=f"node-{rank}")) for job in jobs for rank in (0, 1)]
    assert logs == [EXPECTED_LOG] * len(logs)


@pytest.mark.deep
def test_a_supervisor_killed_at_any_request_exceeds_no_budget_of_restarts(sandbox):
    client = sandbox.client()
    run_programs(sandbox, "restart", RESTART_KILL_POINTS)
    jobs = [client.get_job_ref(job.name) for job in client.list_jobs()]
    ended = wait_for_all(client, jobs)
    assert [(each.restarts.total, each.restarts.following) for each in ended] == [(1, None)] * len(RESTART_KILL_POINTS)
    assert len(sandbox.engine.list_containers(sandbox.label)) == 2 * len(RESTART_KILL_POINTS)


@pytest.mark.deep
def test_a_training_whose_supervisor_was_killed_between_two_starts_is_started_again_when_it_is_observed(sandbox):
    client = sandbox.client()
    policy = RestartPolicy(exit_codes={3: "free"}, delay="15s")
    trainer = CustomTrainer(func=exit_in_turn, func_args={"codes": [3]})
    client.train(runtime="python", trainer=trainer, options=[Name("job"), policy, Checkpoints()])
    wait_until(lambda: client.observe("job").queued, "the first start has failed")
    kill_supervisor(client)
    outcome = client.wait("job", timeout=PATIENCE, restarts=False)
    assert (outcome.result, outcome.resumed_from, outcome.restarts.total) == (2, 1, 1)


def test_concurrent_submitters_create_one_job(sandbox):
    client = sandbox.client()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: run_program(sandbox, "submit", "job", 0), range(4)))
    refs = {answer.stdout.strip() for answer in answers}
    assert refs == {client.get_job_ref("job").to_json()}, [answer.stderr for answer in answers]
    assert client.wait("job").succeeded
    assert len(sandbox.engine.list_containers(sandbox.label)) == 2


def test_a_job_whose_supervisor_was_killed_completes_when_it_is_observed(sandbox):
    client = sandbox.client()
    client.train(runtime="python", trainer=CustomTrainer(func=waits_for_a_signal), options=[Name("job")])
    wait_until_running(client)
    kill_supervisor(client)
    send_signal(client)
    assert client.wait("job", timeout=PATIENCE).result == 7


def test_the_end_of_a_local_job_leaves_the_supervisor_of_a_container_job_that_it_submitted(sandbox, monkeypatch):
    client = sandbox.client()
    monkeypatch.setenv("TRAINJOB_UID", "uid-of-the-local-job")
    client.train(runtime="python", trainer=CustomTrainer(func=waits_for_a_signal), options=[Name("job")])
    wait_until_running(client)
    kill_job_processes(["uid-of-the-local-job"])
    assert supervisor.is_supervised(client.get_job_ref("job").uid)
    send_signal(client)
    assert client.wait("job", timeout=PATIENCE).result == 7


def waits_for_a_signal():
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print("it runs")
    signal.sigwait({signal.SIGUSR1})
    return 7


def wait_until_running(client):
    """Wait until the function runs. Before that, Python as the first process of a container ignores signals."""
    assert next(client.get_job_logs("job", follow=True)) == "it runs"


def send_signal(client):
    (node,) = client.get_job("job").steps
    client.backend._engine._api.kill(node.pod_name, signal.SIGUSR1)


def has_open(pid, path):
    with suppress(OSError):  # The process has ended.
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # The file was closed.
                if entry.readlink() == path:
                    return True
    return False


def kill_supervisor(client):
    """Kill the process that holds the lock of the job."""
    path = paths.lock_path(client.get_job_ref("job").uid)
    wait_until(lambda: supervisor.is_supervised(client.get_job_ref("job").uid), "the supervisor starts")
    for pid in psutil.pids():
        if pid != os.getpid() and has_open(pid, path):
            with suppress(ProcessLookupError):  # It has ended meanwhile.
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not supervisor.is_supervised(client.get_job_ref("job").uid), "the supervisor exits")


def test_a_job_without_a_supervisor_can_be_cancelled_and_deleted(sandbox):
    client = sandbox.client()
    client.train(runtime="python", trainer=CustomTrainer(func=run_forever), options=[Name("job")])
    wait_until_running(client)
    kill_supervisor(client)
    client.cancel("job")
    assert client.get_job_outcome("job").diagnosis.category is Category.DELETED
    assert [step.status for step in client.get_job("job").steps] == ["Failed"]
    client.delete_job("job")
    wait_until(lambda: sandbox.list_objects() == [], "the engine is empty")


def test_a_journal_entry_for_a_deleted_job_is_removed(sandbox):
    client = sandbox.client()
    client.train(runtime="python", trainer=CustomTrainer(func=run_forever), options=[Name("job")])
    store = client.backend._store
    job = store.get_by_name("job")
    client.delete_job("job")
    with pytest.raises(JobNotFoundError):
        store.append_entry(job, job_journal.END, {})
    wait_until(lambda: sandbox.list_objects() == [], "the engine is empty")


def test_a_supervisor_does_not_create_containers_of_a_deleted_job(sandbox):
    client = sandbox.client()
    for _ in range(3):
        client.train(runtime="python", trainer=CustomTrainer(func=run_forever), options=[Name("job")])
        uid = client.get_job_ref("job").uid
        client.delete_job("job")
        wait_until(lambda: not supervisor.is_supervised(uid), "the supervisor exits")  # noqa: B023 -- called at once
    assert sandbox.list_objects() == []


def test_a_supervisor_exits_when_the_engine_has_lost_its_volumes(sandbox):
    client = sandbox.client()
    client.train(runtime="python", trainer=CustomTrainer(func=run_forever), options=[Name("job")])
    wait_until_running(client)
    uid = client.get_job_ref("job").uid
    wait_until(lambda: supervisor.is_supervised(uid), "the supervisor starts")
    lose_volumes(sandbox)
    wait_until(lambda: not supervisor.is_supervised(uid), "the supervisor exits")


def lose_volumes(sandbox):
    """Remove what `podman volume prune` removes, the identity of the engine first."""
    sandbox.engine.remove_volume(names.engine_volume(sandbox.namespace))
    for each in sandbox.engine.list_volumes(sandbox.label):
        sandbox.engine.remove_volume(each["Name"])


def test_nothing_is_started_beside_a_container_whose_record_is_lost(sandbox):
    client = sandbox.client()
    trainer, owner = CustomTrainer(func=run_forever), Owner(key="dag/run/task", slug="train")
    request = client.build_request(runtime="python", trainer=trainer, owner=owner)
    second = request.with_name(request.get_attempt_name(2))
    ref = client.backend.create(client.backend.check(second, 2))
    wait_until(lambda: client.backend.list_processes(ref), "the training runs")
    lose_volumes(sandbox)
    calls = (lambda: client.observe(ref), lambda: client.wait(ref.name), lambda: client.submit(request))
    for call in calls:
        with pytest.raises(JobElsewhereError, match=f"{ref.name}.* has lost its record .* is running"):
            call()
    client.reap()
    assert len(sandbox.engine.list_containers(sandbox.label)) == 1
    client.delete_job(ref.name)
    assert sandbox.list_objects() == []
    assert client.get_job_ref(client.submit(request).name).uid != ref.uid


def test_a_job_takes_the_place_of_a_container_that_has_ended_and_whose_record_is_lost(sandbox):
    client = sandbox.client()
    trainer = CustomTrainer(func=return_value, func_args={"value": 3})
    request = client.build_request(runtime="python", trainer=trainer, options=[Name("job")])
    client.wait(client.submit(request))
    lose_volumes(sandbox)
    with pytest.raises(JobNotFoundError):
        client.get_job("job")
    assert client.wait(client.submit(request)).result == 3


@pytest.fixture
def own_engine(sandbox):
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("needs root and Podman, for an engine that may be stopped")
    # A short path, because the path of a socket is limited to about 100 characters.
    home = Path(tempfile.mkdtemp(prefix="trainjob-"))
    own = OwnEngine(home)
    yield own
    client = TrainerClient(own.config)
    for job in client.list_jobs():
        client.delete_job(job.name)
    own.end()
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_job_survives_a_restart_of_the_engine(own_engine):
    client = TrainerClient(own_engine.config)
    own_engine.prepare(client.backend._engine)
    trainer = CustomTrainer(func=waits_for_a_signal)
    ref = client.get_job_ref(client.train(runtime="python", trainer=trainer, options=[Name("job")]))
    wait_until_running(client)
    own_engine.stop()
    with pytest.raises(BackendUnavailableError, match="does not answer") as unavailable:
        client.observe(ref)
    assert unavailable.value.transient
    own_engine.start_again()
    send_signal(client)
    assert client.wait(ref, timeout=PATIENCE).result == 7


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_another_engine_does_not_call_a_job_deleted_and_changes_nothing(sandbox, own_engine):
    client, other = sandbox.client(), TrainerClient(own_engine.config)
    request = client.build_request(runtime="python", trainer=CustomTrainer(func=run_forever), options=[Name("job")])
    ref = TrainJobRef.from_json(client.submit(request).to_json())
    assert ref.host == client.get_job_ref("job").host
    place = f"'job' lives on the container engine of host '{socket.gethostname()}', "
    for call in (other.observe, other.wait, other.suspend, other.cancel, other.delete_job, other.get_job_events):
        with pytest.raises(JobElsewhereError, match=place):
            call(ref)
    assert client.observe(ref).status != "Failed"
    with pytest.raises(JobElsewhereError, match=own_engine.config.container_host):
        other.observe(ref)
    client.delete_job(ref)
    assert client.wait(ref).diagnosis.category == Category.DELETED


def test_a_ref_of_an_older_version_without_an_engine_is_a_deleted_job(sandbox):
    client = sandbox.client()
    ref = TrainJobRef("container", container_engine.namespace(sandbox.folder), "job", "0" * 32)
    with pytest.raises(JobNotFoundError, match="was deleted from the engine"):
        client.observe(ref)


def test_a_job_whose_claim_was_removed_does_not_exist(sandbox):
    client = sandbox.client()
    ref = client.get_job_ref(
        client.train(runtime="python", trainer=CustomTrainer(func=run_forever), options=[Name("job")])
    )
    sandbox.engine.remove_volume(names.claim_volume(ref.namespace, "job"))
    with pytest.raises(JobNotFoundError):
        client.observe(ref)
