"""Submitters, supervisors and engines that go away at any moment: one run of each job, or none, and never two."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import container_engine
import psutil
import pytest
from container_submitter import ONCE, request_of

from trainer_core import ContainerBackendConfig, CustomTrainer, Name, TrainerClient
from trainer_core.backends.container import book, names, supervising
from trainer_core.configs import TrainingRuntimeSource
from trainer_core.errors import BackendUnavailableError, JobNotFoundError
from trainer_core.outcome import Category
from trainer_core.testing.functions import goes_on

PATIENCE = 90.0
HERE = Path(__file__).parent
TOOL = HERE.parents[2] / "shared" / "tools" / "container-engine"
#: Of a submit, which asks three things, makes the job by the fourth, in two pieces, and then starts a program.
SUBMITS = (1, 4, 5, 6, 7)
#: Of carrying a job of two nodes out, which makes containers from the 9th on, writes their launch down by the 18th,
#: starts them by the 20th and 21st, and then waits for their end.
CARRIES = (2, 7, 11, 17, 20, 21, 27)


def program(here, what, name, number):
    """Run a program that dies, to its end."""
    told = json.dumps({"what": what, "folder": str(here.folder), "name": name, "number": number})
    path = os.pathsep.join([str(HERE), str(HERE.parent / "fakes"), str(HERE.parents[1])])
    command = [sys.executable, str(HERE / "container_submitter.py"), told]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)


def programs(here, what, numbers):
    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(lambda number: program(here, what, f"job-{number}", number), numbers))


def outcomes(client, refs):
    with ThreadPoolExecutor(9) as threads:
        return list(threads.map(lambda ref: client.wait(ref, timeout=PATIENCE), refs))


def until(wanted, what):
    end = time.monotonic() + PATIENCE
    while not (found := wanted()) and time.monotonic() < end:
        time.sleep(0.1)
    assert found, f"{what} did not come"
    return found


@pytest.mark.slow
def test_a_submitter_killed_at_any_moment_leaves_one_job_or_none(here):
    client = here.client()
    programs(here, "submit", SUBMITS)
    left = client.list_jobs()
    assert 0 < len(left) < len(SUBMITS)
    # Whoever comes next gets what there is, or makes it.
    refs = [client.submit(request_of(client, f"job-{number}")) for number in SUBMITS]
    assert {outcome.status for outcome in outcomes(client, refs)} == {"Complete"}
    assert sorted(job.name for job in client.list_jobs()) == sorted(f"job-{number}" for number in SUBMITS)
    logs = [list(client.get_job_logs(ref.name, step=f"node-{rank}")) for ref in refs for rank in (0, 1)]
    assert logs == [ONCE] * len(logs)
    assert len(here.engine.containers(here.label)) == 2 * len(SUBMITS)


@pytest.mark.slow
def test_a_job_whose_supervisor_was_killed_at_any_moment_goes_on_where_it_was(here):
    client = here.client()
    programs(here, "carry", CARRIES)
    jobs = client.list_jobs()
    assert len(jobs) == len(CARRIES)
    ended = outcomes(client, [client.ref(job.name) for job in jobs])
    assert {outcome.status for outcome in ended} == {"Complete"}
    logs = [list(client.get_job_logs(job.name, step=f"node-{rank}")) for job in jobs for rank in (0, 1)]
    assert logs == [ONCE] * len(logs)


def test_submitters_in_many_processes_make_one_job(here):
    client = here.client()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: program(here, "submit", "job", 0), range(4)))
    refs = {answer.stdout.strip() for answer in answers}
    assert refs == {client.ref("job").to_json()}, [answer.stderr for answer in answers]
    assert client.wait("job").succeeded
    assert len(here.engine.containers(here.label)) == 2


def test_a_job_goes_on_without_its_supervisor_and_whoever_looks_sees_it_end(here):
    client = here.client()
    client.train(runtime="python", trainer=CustomTrainer(func=waits_for_a_signal), options=[Name("job")])
    until_it_runs(client)
    kill_supervisor(client)
    let_go(client)
    assert client.wait("job", timeout=PATIENCE).result == 7


def waits_for_a_signal():
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print("it runs")
    signal.sigwait({signal.SIGUSR1})
    return 7


def until_it_runs(client):
    """Until the function itself runs: before that Python ignores signals, as the first process of a container."""
    assert next(client.get_job_logs("job", follow=True)) == "it runs"


def let_go(client):
    (node,) = client.get_job("job").steps
    client.backend._engine._api.kill(node.pod_name, signal.SIGUSR1)


def kill_supervisor(client):
    """Kill the process that holds the lock of a job."""
    path = supervising.lock_path(client.ref("job").uid)
    until(lambda: supervising.lives(client.ref("job").uid), "the supervisor")
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            holds = entry.readlink() == path
        except OSError:
            continue
        pid = int(entry.parts[2])
        if holds and pid != os.getpid():
            os.kill(pid, 9)
    until(lambda: not supervising.lives(client.ref("job").uid), "the end of the supervisor")


def test_a_job_without_a_supervisor_is_cancelled_and_deleted_all_the_same(here):
    client = here.client()
    client.train(runtime="python", trainer=CustomTrainer(func=goes_on), options=[Name("job")])
    until_it_runs(client)
    kill_supervisor(client)
    client.cancel("job")
    assert client.outcome("job").diagnosis.category is Category.DELETED
    assert [step.status for step in client.get_job("job").steps] == ["Failed"]
    client.delete_job("job")
    until(lambda: here.everything() == [], "an empty engine")


def test_what_is_written_into_the_book_of_a_deleted_job_is_gone_with_it(here):
    client = here.client()
    client.train(runtime="python", trainer=CustomTrainer(func=goes_on), options=[Name("job")])
    store = client.backend._store
    job = store.named("job")
    client.delete_job("job")
    with pytest.raises(JobNotFoundError):
        store.append(job, book.END, {})
    until(lambda: here.everything() == [], "an empty engine")


def test_a_deleted_job_is_not_made_anew_by_its_supervisor(here):
    client = here.client()
    for _ in range(3):
        client.train(runtime="python", trainer=CustomTrainer(func=goes_on), options=[Name("job")])
        uid = client.ref("job").uid
        client.delete_job("job")
        until(lambda: not supervising.lives(uid), "the end of the supervisor")  # noqa: B023 -- called at once
    assert here.everything() == []


def has_ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class OwnEngine:
    """An engine of this test only. Its image has nothing: its runtime shows it this machine's Python."""

    IMAGE = "localhost/trainjob-empty:latest"

    def __init__(self, home: Path) -> None:
        self._home = home / "engine"
        self._env = {**os.environ, "CONTAINER_ENGINE_HOME": str(self._home)}
        self._runtimes = home / "runtimes"
        self._processes: list[subprocess.Popen] = []
        self.config = ContainerBackendConfig(
            container_host=f"unix://{self._home}/podman.sock",
            runtime_source=TrainingRuntimeSource(sources=[str(self._runtimes)]),
        )
        self._tool("up")
        # Holds what the containers' networks hang on, as the machine does where the engine is a service of it.
        inside = ["nsenter", "-m", "-t", (self._home / "pid").read_text().strip()]
        self._holder = subprocess.Popen([*inside, "sleep", "600"])
        self._processes.append(self._holder)

    def _tool(self, word: str) -> None:
        subprocess.run([str(TOOL), word], env=self._env, check=True, capture_output=True)

    def stop(self) -> None:
        service = psutil.Process(int((self._home / "pid").read_text()))
        self._tool("down")
        # It takes its socket away when it ends: not that of the next one.
        until(lambda: has_ended(service), "the end of the engine")

    def start_again(self) -> None:
        folders = ["--root", str(self._home / "storage"), "--runroot", str(self._home / "run")]
        address = f"unix://{self._home}/podman.sock"
        service = ["podman", *folders, "system", "service", "--time=0", address]
        env = {**os.environ, "CONTAINERS_CONF": str(self._home / "containers.conf")}
        command = ["nsenter", "-m", "-t", str(self._holder.pid), *service]
        self._processes.append(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
        until((self._home / "podman.sock").exists, "the engine")

    def end(self) -> None:
        self._tool("down")
        for process in self._processes:
            process.terminate()
            process.wait()

    def prepare(self, engine) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as writer:
            for folder in ("tmp", "usr", "lib", "lib64", "bin", "etc", "proc", "dev", "sys", "run", "root"):
                made = tarfile.TarInfo(folder)
                made.type, made.mode = tarfile.DIRTYPE, 0o1777
                writer.addfile(made)
        engine._api.import_image(archive.getvalue(), repository=self.IMAGE.partition(":")[0])
        text = (container_engine.RUNTIMES / "python.yaml").read_text().replace(container_engine.IMAGE, self.IMAGE)
        folders = ("usr", "lib", "lib64", "bin")
        mounts = "".join(f"\n{' ' * 24}- {{name: {each}, mountPath: /{each}, readOnly: true}}" for each in folders)
        volumes = "".join(f"\n{' ' * 20}- {{name: {each}, hostPath: {{path: /{each}}}}}" for each in folders)
        text += f"{' ' * 22}volumeMounts:{mounts}\n{' ' * 18}volumes:{volumes}\n"
        self._runtimes.mkdir()
        (self._runtimes / "python.yaml").write_text(text)


@pytest.fixture
def own_engine(here):
    if not TOOL.exists():
        pytest.skip(f"needs {TOOL}, which starts an engine that may be stopped")
    # The path of a socket is short.
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
def test_an_engine_that_is_stopped_and_started_again_loses_no_job(own_engine):
    client = TrainerClient(own_engine.config)
    own_engine.prepare(client.backend._engine)
    trainer = CustomTrainer(func=waits_for_a_signal)
    ref = client.ref(client.train(runtime="python", trainer=trainer, options=[Name("job")]))
    until_it_runs(client)
    own_engine.stop()
    with pytest.raises(BackendUnavailableError, match="does not answer") as away:
        client.observe(ref)
    assert away.value.transient
    own_engine.start_again()
    let_go(client)
    assert client.wait(ref, timeout=PATIENCE).result == 7


def test_the_name_of_a_job_whose_claim_is_gone_is_free(here):
    client = here.client()
    ref = client.ref(client.train(runtime="python", trainer=CustomTrainer(func=goes_on), options=[Name("job")]))
    here.engine.remove_volume(names.claim(ref.namespace, "job"))
    with pytest.raises(JobNotFoundError):
        client.observe(ref)
