"""`make airflow-hosts`: an Airflow on several hosts that share no disk, with provoked failures.

    this host   PostgreSQL, Redis, API server, scheduler, DAG processor
    host-a      Celery worker of the queues any and host-a
    host-b      Celery worker of the queues any and host-b
    host-c      triggerer

Each host consists of Linux namespaces: its own processes, hostname, boot id, machine id and disk (a tmpfs with the
state folder). Network, code and the folder of the task logs are common to all. The script decides which worker serves
the queue `any`, kills workers and hosts, and checks that no second TrainJob runs beside one that may be alive.

Needs Linux, root, and the Debian packages postgresql and redis-server. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import celery
import httpx
import psutil
from airflow_here import ROOT, UNUSED_PORTS, AirflowHere, AirflowHereError, wait_until
from airflow_rest import Api
from rich.console import Console
from rich.table import Table

from trainer_core.backends.local.job_store import StateFolder
from trainer_core.node import env

WORKERS = ("host-a", "host-b")
TRIGGERER = "host-c"

#: A killed worker is detected after 20 seconds instead of Airflow's default of five minutes.
_SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
    "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
    "AIRFLOW__CELERY__WORKER_PREFETCH_MULTIPLIER": "1",
    "AIRFLOW__CELERY__OPERATION_TIMEOUT": "30",
}

#: $1: hostname; $2: mount point of its disk. The shell is process 1 of the host: it reaps processes without a parent.
_BOOT = """
set -e
hostname "$1"
mount -t tmpfs -o mode=700 none "$2"
mkdir "$2/tmp"
tr -d - </proc/sys/kernel/random/uuid >"$2/machine-id"
cat /proc/sys/kernel/random/uuid >"$2/boot_id"
[ ! -e /etc/machine-id ] || mount --bind "$2/machine-id" /etc/machine-id
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
touch "$2/booted"
while :; do sleep 60 || :; done
"""

_began = time.monotonic()


class Host:
    """A host that shares no processes and no disk with the others.

    Args:
        name: Its hostname.
        disk: Mount point of its disk, the same on all hosts.
        unshare: Process that holds it; its child is process 1 of the host.
    """

    def __init__(self, name: str, disk: Path, unshare: psutil.Popen) -> None:
        self.name = name
        (self._init,) = wait_until(unshare.children, f"{name} has a process 1")
        self._namespace = self._read_namespace(self._init.pid)
        self._disk = Path(f"/proc/{self._init.pid}/root{disk}")
        wait_until((self._disk / "booted").exists, f"{name} boots")

    def enter(self, *command: str) -> list[str]:
        """Return the command line that runs a command on this host."""
        return ["nsenter", f"--target={self._init.pid}", "--mount", "--uts", "--ipc", "--pid", "--", *command]

    @property
    def state(self) -> StateFolder:
        """State folder on the disk of this host."""
        return StateFolder(self._disk / "trainjobs")

    def kill_worker(self) -> None:
        """Kill all processes of Airflow on this host. TrainJobs keep running."""
        for process in self._list_processes():
            with suppress(psutil.Error):
                is_supervisor = "trainer_core.backends" in " ".join(process.cmdline())
                if not (process == self._init or is_supervisor or env.UID in process.environ()):
                    process.kill()

    def kill(self) -> None:
        """Kill all processes of this host."""
        self._init.kill()
        wait_until(lambda: not list(self._list_processes()), f"the processes of {self.name} end")

    def _list_processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(OSError):
                if self._read_namespace(process.pid) == self._namespace:
                    yield process

    @staticmethod
    def _read_namespace(pid: int) -> str:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())


class AirflowOnHosts(AirflowHere):
    """Airflow with PostgreSQL and the CeleryExecutor, with workers and triggerer on hosts of their own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, fresh=True, ports=[8080, 8793, 8794, *UNUSED_PORTS[:2]])
        self.shared = folder / "shared"
        self.gates = folder / "gates"
        self.jobs = folder / "disk" / "trainjobs"
        self.hosts: dict[str, Host] = {}
        self._keys = [secrets.token_hex(32) for _ in range(2)]

    def __exit__(self, *_: object) -> None:
        """Stop all processes, the hosts after those of Airflow, and PostgreSQL and Redis at the end."""
        try:
            self._stop([f"worker-{name}" for name in WORKERS])
        finally:
            super().__exit__()
            for name in self.hosts:  # unshare ignores SIGTERM; its end kills all processes of the host.
                self._leaders[name].kill()
            self._stop(list(self.hosts))
            self._stop(["redis", "postgres"])

    @property
    def broker(self) -> celery.Celery:
        """Client of the message broker."""
        return celery.Celery(broker=self.environment["AIRFLOW__CELERY__BROKER_URL"])

    def serve_any(self, name: str) -> None:
        """Let exactly one worker serve the queue `any`."""
        control = self.broker.control
        for worker in WORKERS:
            method = control.add_consumer if worker == name else control.cancel_consumer
            if not method("any", destination=[f"celery@{worker}"], reply=True, timeout=10) and worker == name:
                raise AirflowHereError(f"the worker on {worker} does not answer")

    def start_worker(self, name: str) -> None:
        """Start the worker of a host, and wait until it answers."""
        command = ["celery", "worker", "--queues", f"any,{name}", "--celery-hostname", f"celery@{name}"]
        options = ["--concurrency", "2", "--skip-serve-logs", "--without-gossip", "--without-mingle"]
        self._start_on(name, f"worker-{name}", *command, *options)
        broker = self.broker

        def answers() -> bool:
            if exited := self.list_exited():
                raise AirflowHereError(f"{exited[0]} has exited; see {self.get_log_file(exited[0])}")
            return bool(broker.control.ping(destination=[f"celery@{name}"], timeout=1))

        wait_until(answers, f"the worker on {name} answers")

    def _start(self, component: str) -> None:
        if component == "triggerer":
            self._start_on(TRIGGERER, component, component)
            for name in WORKERS:
                self.start_worker(name)
        else:
            super()._start(component)

    def start_triggerer(self) -> None:
        """Start the triggerer on its host."""
        self._start_on(TRIGGERER, "triggerer", "triggerer")

    def stop_triggerer(self) -> None:
        """Stop the triggerer, so that a deferred task stays deferred."""
        self._stop(["triggerer"])

    def _start_on(self, host: str, name: str, *arguments: str) -> None:
        command = self.hosts[host].enter(sys.executable, "-m", "airflow", *arguments)
        environment = {**self.environment, "TMPDIR": str(self.jobs.parent / "tmp")}
        self._start_process(name, command, env=environment)

    def _environment(self, database: Path) -> dict[str, str]:
        postgres, redis = self._ports[3:]
        address = f"airflow@127.0.0.1:{postgres}/airflow"
        return {
            **super()._environment(database),
            **_SETTINGS,
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{address}",
            "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{redis}/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2://{address}",
            # Without them, each host makes up its own.
            "AIRFLOW__API_AUTH__JWT_SECRET": self._keys[0],
            "AIRFLOW__API__SECRET_KEY": self._keys[1],
            "AIRFLOW__CORE__FERNET_KEY": "",
            "HOSTS_SHARED_FOLDER": str(self.shared),
        }

    def _migrate(self) -> None:
        for folder in (self.folder / "dags", self.jobs.parent, self.shared, self.gates):
            folder.mkdir()
        shutil.copy(ROOT / "tools" / "hosts_dag.py", self.folder / "dags")
        self._start_redis()
        self._start_postgres()
        for name in (*WORKERS, TRIGGERER):
            command = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
            process = self._start_process(name, [*command, "sh", "-c", _BOOT, "sh", name, str(self.jobs.parent)])
            self.hosts[name] = Host(name, self.jobs.parent, process)
        self._run("migrate", [sys.executable, "-m", "airflow", "db", "migrate"], env=self.environment)

    def _start_redis(self) -> None:
        options = ["--bind", "127.0.0.1", "--port", str(self._ports[4]), "--save", ""]
        self._start_process("redis", ["redis-server", *options], cwd=self.folder)

    def _start_postgres(self) -> None:
        """PostgreSQL refuses to run as root, and its user cannot enter the private folder of Airflow."""
        programs = list_postgres_folders()
        data = Path("/var/lib/postgresql") / f"trainjob-{self.folder.name}"
        shutil.rmtree(data, ignore_errors=True)
        options: dict[str, Any] = {"user": "postgres", "group": "postgres", "cwd": "/"}
        self._run("postgres", [f"{programs[-1]}/initdb", "-A", "trust", "-U", "airflow", "-D", str(data)], **options)
        port = str(self._ports[3])
        settings = ["-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        self._start_process("postgres", [f"{programs[-1]}/postgres", "-D", str(data), *settings, "-F"], **options)
        create = [f"{programs[-1]}/createdb", "-h", "127.0.0.1", "-p", port, "-U", "airflow", "airflow"]
        wait_until(lambda: not subprocess.run(create, capture_output=True).returncode, "PostgreSQL answers", 60)

    def _run(self, name: str, command: list[str], **options: Any) -> None:
        with self.get_log_file(name).open("a") as log:
            if subprocess.run(command, stdout=log, stderr=log, **options).returncode:
                raise AirflowHereError(f"{Path(command[0]).name} has failed; see {self.get_log_file(name)}")


class Play:
    """A run of one DAG with its gate, and the checks of what is seen.

    Args:
        airflow: The running Airflow.
        api: Client of its REST API.
        dag: Id of the DAG.
    """

    def __init__(self, airflow: AirflowOnHosts, api: Api, dag: str) -> None:
        self.airflow = airflow
        self.problems: list[str] = []
        self._gate = airflow.gates / secrets.token_hex(4)
        self._api = api
        api.unpause(dag)
        self.run = api.start(dag, {"gate": str(self._gate)})

    def wait_for_job(self) -> None:
        """Wait until the TrainJob of the run is alive."""
        wait_until(self.list_alive, f"the TrainJob of {self.run.dag} runs", 120)

    def wait_for_state(self, state: str) -> None:
        """Wait until the task is in a state."""
        self.run.wait_for_task("train", state)

    def wait_for_failure_on(self, host: str, line: str) -> None:
        """Wait until a try has failed on a host with a line in its log."""

        def failed() -> list[str]:
            return [text for number in self.list_failed(host) if line in (text := self.read_log(number))]

        wait_until(failed, f"a try of {self.run.dag} fails on {host} with {line!r}", 180)
        self.say(f"a try has failed on {host} with: {find_line(failed()[0], line)}")

    def list_failed(self, host: str) -> list[int]:
        """Return the numbers of the tries that failed on a host."""
        failed = [one for one in self.run.list_tries("train") if one["state"] in ("failed", "up_for_retry")]
        return [one["try_number"] for one in failed if one["hostname"] == host]

    def read_log(self, number: int) -> str:
        """Return the log of a try; empty if it has none yet."""
        run = self.airflow.folder / "logs" / f"dag_id={self.run.dag}" / f"run_id={self.run.run_id}"
        try:
            return (run / "task_id=train" / f"attempt={number}.log").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def expect_one_job(self, host: str) -> None:
        """Note a problem unless exactly one TrainJob of the run exists, on a host, and is alive."""
        alive, existing = self.list_alive(), self.list_jobs()
        self.say(f"TrainJobs: {', '.join(existing) or 'none'}; alive: {', '.join(alive) or 'none'}")
        if [place.partition(":")[0] for place in existing] != [host] or alive != existing:
            self.problems.append(f"{self.run.dag}: TrainJobs {existing}, alive {alive}, expected one on {host}")

    def list_jobs(self) -> list[str]:
        """Return `host:name` of all TrainJobs of the run."""
        return [f"{host}:{name}" for host, state in self._states() for name in state.list_job_names()]

    def list_alive(self) -> list[str]:
        """Return `host:name` of the TrainJobs that run."""
        return [
            f"{host}:{name}"
            for host, state in self._states()
            for name in state.list_job_names()
            if state.job_folder(name).is_supervised()
        ]

    def _states(self) -> list[tuple[str, StateFolder]]:
        if self.run.dag.endswith("_shared"):
            return [("shared", StateFolder(self.airflow.shared))]
        return [(name, self.airflow.hosts[name].state) for name in WORKERS]

    def finish(self, host: str) -> None:
        """Open the gate, and expect that the task succeeds on a host; delete the TrainJobs."""
        self._gate.touch()
        self.run.wait()
        task = self.run.task("train")
        self.say(f"the task is {task['state']} on {task['hostname']}")
        if (task["state"], task["hostname"]) != ("success", host):
            self.problems.append(f"{self.run.dag}: {task['state']} on {task['hostname']}, expected success on {host}")
        self.delete_jobs()

    def delete_jobs(self) -> None:
        """Remove the TrainJobs of the run, so that the next play starts without any."""
        wait_until(lambda: not self.list_alive(), f"the TrainJob of {self.run.dag} ends", 60)
        for _, state in self._states():
            for name in state.list_job_names():
                state.remove_job(state.job_folder(name))

    def say(self, line: str) -> None:
        """Print what was seen."""
        print(f"{time.monotonic() - _began:5.0f} s  {self.run.dag:15} {line}", flush=True)


def find_line(log: str, text: str) -> str:
    """Return the part of a log around a text."""
    at = log.index(text)
    begin = log.rfind("TrainJob '", 0, at)
    return log[max(begin, at - 400) : at + len(text)]


def main() -> int:
    """Play all failures; return 0 if everything was as expected."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    if missing := find_missing_requirement():
        print(f"airflow-hosts: {missing}", file=sys.stderr)
        return 1
    airflow = AirflowOnHosts(ROOT / ".airflow" / "hosts")
    plays: list[Play] = []
    try:
        print("starting PostgreSQL, Redis, three hosts and Airflow", flush=True)
        with airflow:
            api = Api(airflow)
            for play in PLAYS:
                print(f"\n{play.__doc__}", flush=True)
                plays.append(play(airflow, api))
            show(plays)
            problems = [line for play in plays for line in play.problems]
    except (AirflowHereError, httpx.HTTPError) as error:
        problems = [str(error)]
    except KeyboardInterrupt:
        problems = ["interrupted"]
    for line in problems:
        print(f"airflow-hosts: {line}", file=sys.stderr)
    print(f"FAILED; the logs are in {airflow.folder}" if problems else "passed")
    return 1 if problems else 0


def find_missing_requirement() -> str | None:
    """Return what is missing of that which pip cannot install; None if nothing is."""
    if not Path("/proc/self/ns").is_dir() or os.geteuid() != 0:
        return "it needs root on Linux, because each host consists of namespaces"
    if not shutil.which("redis-server"):
        return "Redis is missing: apt install redis-server"
    if not list_postgres_folders():
        return "PostgreSQL is missing: apt install postgresql"
    return None


def list_postgres_folders() -> list[Path]:
    """Return the folders with the programs of PostgreSQL, of the latest version last."""
    return sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def show(plays: list[Play]) -> None:
    """Print a table of all tries."""
    table = Table("DAG", "try", "host", "state", box=None)
    for play in plays:
        for one in play.run.list_tries("train"):
            table.add_row(play.run.dag, str(one["try_number"]), one["hostname"], one["state"])
    Console(width=100).print(table)


def play_deferred(airflow: AirflowOnHosts, api: Api) -> Play:
    """Deferred; the triggerer cannot see the job; the task returns to the host of the job."""
    airflow.serve_any("host-a")
    play = Play(airflow, api, "deferred")
    play.wait_for_job()
    wait_until(lambda: "waiting in this worker" in play.read_log(1), "the task returns to a worker", 120)
    play.expect_one_job("host-a")
    play.finish("host-a")
    return play


def play_deferred_to_wrong_host(airflow: AirflowOnHosts, api: Api) -> Play:
    """Deferred; the task returns to another host than that of the job."""
    airflow.serve_any("host-a")
    airflow.stop_triggerer()
    play = Play(airflow, api, "deferred")
    play.wait_for_state("deferred")
    airflow.serve_any("host-b")
    airflow.start_triggerer()
    play.wait_for_failure_on("host-b", "set queue= to one host")
    play.expect_one_job("host-a")
    play.wait_for_failure_on("host-b", "no second TrainJob was started")
    play.expect_one_job("host-a")
    airflow.serve_any("host-a")
    wait_until(lambda: play.run.task("train")["hostname"] == "host-a", "a try runs on host-a", 120)
    play.wait_for_state("running")
    play.expect_one_job("host-a")
    play.finish("host-a")
    return play


def play_killed_worker(airflow: AirflowOnHosts, api: Api) -> Play:
    """The worker is killed while it waits; the retry runs on another host first."""
    airflow.serve_any("host-a")
    play = Play(airflow, api, "waiting")
    play.wait_for_job()
    wait_until(lambda: play.run.job("train"), "the task has pushed its ref", 60)
    airflow.hosts["host-a"].kill_worker()
    play.say("killed the worker on host-a")
    airflow.serve_any("host-b")
    play.wait_for_failure_on("host-b", "no second TrainJob was started")
    play.expect_one_job("host-a")
    airflow.start_worker("host-a")
    airflow.serve_any("host-a")
    wait_until(lambda: play.run.task("train")["hostname"] == "host-a", "a try runs on host-a", 120)
    play.wait_for_state("running")
    play.expect_one_job("host-a")
    play.finish("host-a")
    return play


def play_pinned_deferred(airflow: AirflowOnHosts, api: Api) -> Play:
    """Deferred, with queue= of the host."""
    play = Play(airflow, api, "deferred_pinned")
    play.wait_for_job()
    wait_until(lambda: "waiting in this worker" in play.read_log(1), "the task returns to a worker", 120)
    play.expect_one_job("host-a")
    play.finish("host-a")
    return play


def play_pinned_killed_worker(airflow: AirflowOnHosts, api: Api) -> Play:
    """The worker is killed while it waits, with queue= of the host."""
    play = Play(airflow, api, "waiting_pinned")
    play.wait_for_job()
    wait_until(lambda: play.run.job("train"), "the task has pushed its ref", 60)
    airflow.hosts["host-a"].kill_worker()
    airflow.start_worker("host-a")
    play.say("killed the worker on host-a and started it again")
    wait_until(lambda: play.run.task("train")["try_number"] == 2, "the task is retried", 120)
    play.wait_for_state("running")
    play.expect_one_job("host-a")
    play.finish("host-a")
    return play


def play_shared_deferred(airflow: AirflowOnHosts, api: Api) -> Play:
    """Shared state folder; deferred; the task returns to another host than that of the job."""
    airflow.serve_any("host-a")
    play = Play(airflow, api, "deferred_shared")
    play.wait_for_state("deferred")
    play.wait_for_job()
    airflow.serve_any("host-b")
    play.expect_one_job("shared")
    play.finish("host-b")
    return play


def play_shared_killed_worker(airflow: AirflowOnHosts, api: Api) -> Play:
    """Shared state folder; the worker is killed while it waits; the retry on another host waits for the job."""
    airflow.serve_any("host-a")
    play = Play(airflow, api, "waiting_shared")
    play.wait_for_job()
    wait_until(lambda: play.run.job("train"), "the task has pushed its ref", 60)
    airflow.hosts["host-a"].kill_worker()
    play.say("killed the worker on host-a")
    airflow.serve_any("host-b")
    wait_until(lambda: play.run.task("train")["hostname"] == "host-b", "the task is retried on host-b", 120)
    play.wait_for_state("running")
    play.expect_one_job("shared")
    play.finish("host-b")
    return play


def play_shared_lost_host(airflow: AirflowOnHosts, api: Api) -> Play:
    """Shared state folder; the host of the job is lost; the job is repeated once its folder is deleted."""
    airflow.start_worker("host-a")
    airflow.serve_any("host-a")
    play = Play(airflow, api, "waiting_shared")
    play.wait_for_job()
    wait_until(lambda: play.run.job("train"), "the task has pushed its ref", 60)
    airflow.hosts["host-a"].kill()
    play.say("host-a is lost with all its processes")
    airflow.serve_any("host-b")
    play.wait_for_failure_on("host-b", "if that host is gone, delete")
    (name,) = StateFolder(airflow.shared).list_job_names()
    shutil.rmtree(airflow.shared / "jobs" / name)
    play.say("deleted the folder of the job")
    play.wait_for_job()
    play.expect_one_job("shared")
    play.finish("host-b")
    return play


PLAYS = (
    play_deferred,
    play_deferred_to_wrong_host,
    play_killed_worker,
    play_pinned_deferred,
    play_pinned_killed_worker,
    play_shared_deferred,
    play_shared_killed_worker,
    play_shared_lost_host,
)

if __name__ == "__main__":
    sys.exit(main())
