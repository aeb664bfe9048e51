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
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import celery
import psutil
from airflow_here import MIGRATE, ROOT, UNUSED_PORTS, AirflowHere, AirflowHereError, run_checks, say, wait_until
from airflow_rest import Api, Json
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
        return ["nsenter", f"--target={self._init.pid}", "--mount", "--uts", "--ipc", "--pid", "--", *command]

    @property
    def state(self) -> StateFolder:
        return StateFolder(self._disk / "trainjobs")

    def kill_worker(self) -> None:
        """Kill all processes of Airflow on this host. TrainJobs keep running."""
        for process in self._list_processes():
            with suppress(psutil.Error):
                is_supervisor = "trainer_core.backends" in " ".join(process.cmdline())
                if not (process == self._init or is_supervisor or env.UID in process.environ()):
                    process.kill()

    def kill(self) -> None:
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
    """Airflow with PostgreSQL and the CeleryExecutor, with workers and triggerer on separate hosts."""

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
        return celery.Celery(broker=self.environment["AIRFLOW__CELERY__BROKER_URL"])

    def serve_any(self, name: str) -> None:
        """Let exactly one worker serve the queue `any`."""
        control = self.broker.control
        for worker in WORKERS:
            method = control.add_consumer if worker == name else control.cancel_consumer
            if not method("any", destination=[f"celery@{worker}"], reply=True, timeout=10) and worker == name:
                raise AirflowHereError(f"the worker on {worker} does not answer")

    def start_worker(self, name: str) -> None:
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
        if component != "triggerer":
            super()._start(component)
            return
        self.start_triggerer()
        for name in WORKERS:
            self.start_worker(name)

    def start_triggerer(self) -> None:
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
        self._create("Airflow's database", "migrate", MIGRATE, env=self.environment)

    def _start_redis(self) -> None:
        options = ["--bind", "127.0.0.1", "--port", str(self._ports[4]), "--save", ""]
        self._start_process("redis", ["redis-server", *options], cwd=self.folder)

    def _start_postgres(self) -> None:
        """PostgreSQL refuses to run as root, and its user cannot enter the private folder of Airflow."""
        programs = list_postgres_folders()
        data = Path("/var/lib/postgresql") / f"trainjob-{self.folder.name}"
        shutil.rmtree(data, ignore_errors=True)
        options: dict[str, Any] = {"user": "postgres", "group": "postgres", "cwd": "/"}
        initialize = [f"{programs[-1]}/initdb", "-A", "trust", "-U", "airflow", "-D", str(data)]
        self._create("PostgreSQL's data folder", "postgres", initialize, **options)
        port = str(self._ports[3])
        settings = ["-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        self._start_process("postgres", [f"{programs[-1]}/postgres", "-D", str(data), *settings, "-F"], **options)
        create = [f"{programs[-1]}/createdb", "-h", "127.0.0.1", "-p", port, "-U", "airflow", "airflow"]
        wait_until(lambda: not subprocess.run(create, capture_output=True).returncode, "PostgreSQL answers", 60)


class Scenario:
    """A run of a DAG with one task, which trains until `finish`; notes what differs from what is expected.

    Its TrainJob is on host-a, or in the folder that all hosts share.

    Args:
        airflow: The running Airflow.
        api: Client of its REST API.
        dag: Id of the DAG.
    """

    def __init__(self, airflow: AirflowOnHosts, api: Api, dag: str) -> None:
        self.airflow = airflow
        self.problems: list[str] = []
        self._dag = dag
        self._api = api
        self._gate = airflow.gates / secrets.token_hex(4)
        if dag.endswith("_shared"):
            self._folders = {"shared": StateFolder(airflow.shared)}
        else:
            self._folders = {name: airflow.hosts[name].state for name in WORKERS}

    def start(self) -> None:
        """Start the run; host-a serves the queue `any`."""
        self.airflow.serve_any("host-a")
        self._api.unpause(self._dag)
        self.run = self._api.start(self._dag, {"gate": str(self._gate)})

    def wait_for_job(self) -> None:
        wait_until(self._list_alive, f"the TrainJob of {self._dag} runs", 120)

    def wait_for_ref(self) -> None:
        """Wait until the TrainJob is alive and the task has pushed its ref."""
        self.wait_for_job()
        wait_until(lambda: self.run.job("train"), "the task has pushed its ref", 60)

    def kill_worker(self) -> None:
        """Kill the worker on host-a once the task has pushed its ref."""
        self.wait_for_ref()
        self.airflow.hosts["host-a"].kill_worker()
        self.say("killed the worker on host-a")

    def wait_for_state(self, state: str) -> None:
        self.run.wait_for_task("train", state)

    def wait_for_failure_on_host_b(self, line: str) -> None:
        """Wait until a try has failed on host-b with a line in its log."""

        def find_failure() -> str | None:
            failed = [each for each in self._list_tries() if each["state"] in ("failed", "up_for_retry")]
            logs = [self.read_log(each["try_number"]) for each in failed if each["hostname"] == "host-b"]
            return next((log for log in logs if line in log), None)

        log = wait_until(find_failure, f"a try of {self._dag} fails on host-b with {line!r}", 180)
        self.say(f"a try has failed on host-b with: {extract_message(log or '', line)}")

    def wait_for_retry_on(self, host: str) -> None:

        def is_there() -> bool:
            task = self.run.task("train")
            return bool(task["hostname"] == host and task["try_number"] > 1)

        wait_until(is_there, f"{self._dag} is retried on {host}", 120)
        self.wait_for_state("running")

    def read_log(self, number: int) -> str:
        """Return the log of a try; empty if it has none yet."""
        run = self.airflow.folder / "logs" / f"dag_id={self._dag}" / f"run_id={self.run.run_id}"
        try:
            return (run / "task_id=train" / f"attempt={number}.log").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def expect_one_job(self) -> None:
        """Note a problem unless exactly one TrainJob of the run exists, at its place, and is alive."""
        alive, existing = self._list_alive(), self._list_jobs()
        self.say(f"TrainJobs: {', '.join(existing) or 'none'}; alive: {', '.join(alive) or 'none'}")
        (expected, *_) = self._folders
        if [name.partition(":")[0] for name in existing] != [expected] or alive != existing:
            self.problems.append(f"{self._dag}: TrainJobs {existing}, alive {alive}, expected one on {expected}")

    def finish(self, host: str) -> None:
        """Expect one TrainJob, end its training, and expect that the task succeeds on a host; delete the TrainJob."""
        self.expect_one_job()
        self._gate.touch()
        self.run.wait()
        task = self.run.task("train")
        self.say(f"the task is {task['state']} on {task['hostname']}")
        if (task["state"], task["hostname"]) != ("success", host):
            self.problems.append(f"{self._dag}: {task['state']} on {task['hostname']}, expected success on {host}")
        wait_until(lambda: not self._list_alive(), f"the TrainJob of {self._dag} ends", 60)
        for folder in self._folders.values():
            for name in folder.list_job_names():
                folder.remove_folder(folder.job_folder(name).path)

    def add_tries(self, table: Table) -> None:
        for each in self._list_tries():
            table.add_row(self._dag, str(each["try_number"]), each["hostname"], each["state"])

    def say(self, line: str) -> None:
        say(f"{self._dag:15} {line}")

    def _list_tries(self) -> list[Json]:
        return self.run.list_tries("train")

    def _list_jobs(self) -> list[str]:
        """Return `place:name` of all TrainJobs of the run."""
        return [f"{place}:{name}" for place, folder in self._folders.items() for name in folder.list_job_names()]

    def _list_alive(self) -> list[str]:
        """Return `place:name` of the TrainJobs that run."""
        return [
            f"{place}:{name}"
            for place, folder in self._folders.items()
            for name in folder.list_job_names()
            if folder.job_folder(name).is_supervised()
        ]


def extract_message(log: str, text: str) -> str:
    at = log.index(text)
    begin = log.rfind("TrainJob '", 0, at)
    return log[max(begin, at - 400) : at + len(text)]


def return_to_host_of_job(scenario: Scenario) -> None:
    """Deferred; the triggerer cannot see the job; the task returns to the host of the job."""
    scenario.start()
    scenario.wait_for_job()
    wait_until(lambda: "waiting in this worker" in scenario.read_log(1), "the task returns to a worker", 120)
    scenario.finish("host-a")


def return_to_wrong_host(scenario: Scenario) -> None:
    """Deferred; the task returns to another host than that of the job."""
    scenario.airflow.stop_triggerer()
    scenario.start()
    scenario.wait_for_state("deferred")
    scenario.airflow.serve_any("host-b")
    scenario.airflow.start_triggerer()
    scenario.wait_for_failure_on_host_b("set queue= to one host")
    scenario.expect_one_job()
    scenario.wait_for_failure_on_host_b("no second TrainJob was started")
    scenario.expect_one_job()
    scenario.airflow.serve_any("host-a")
    scenario.wait_for_retry_on("host-a")
    scenario.finish("host-a")


def kill_worker(scenario: Scenario) -> None:
    """The worker is killed while it waits; the retry runs on another host first."""
    scenario.start()
    scenario.kill_worker()
    scenario.airflow.serve_any("host-b")
    scenario.wait_for_failure_on_host_b("no second TrainJob was started")
    scenario.expect_one_job()
    scenario.airflow.start_worker("host-a")
    scenario.airflow.serve_any("host-a")
    scenario.wait_for_retry_on("host-a")
    scenario.finish("host-a")


def kill_pinned_worker(scenario: Scenario) -> None:
    """The worker is killed while it waits, with queue= of the host."""
    scenario.start()
    scenario.kill_worker()
    scenario.airflow.start_worker("host-a")
    scenario.wait_for_retry_on("host-a")
    scenario.finish("host-a")


def return_to_other_host(scenario: Scenario) -> None:
    """Shared state folder; deferred; the task returns to another host than that of the job."""
    scenario.start()
    scenario.wait_for_state("deferred")
    scenario.wait_for_job()
    scenario.airflow.serve_any("host-b")
    scenario.finish("host-b")


def retry_on_other_host(scenario: Scenario) -> None:
    """Shared state folder; the worker is killed while it waits; the retry on another host waits for the job."""
    scenario.start()
    scenario.kill_worker()
    scenario.airflow.serve_any("host-b")
    scenario.wait_for_retry_on("host-b")
    scenario.finish("host-b")


def lose_host(scenario: Scenario) -> None:
    """Shared state folder; the host of the job is lost; the job is repeated once its folder is deleted."""
    scenario.airflow.start_worker("host-a")
    scenario.start()
    scenario.wait_for_ref()
    scenario.airflow.hosts["host-a"].kill()
    scenario.say("host-a is lost with all its processes")
    scenario.airflow.serve_any("host-b")
    scenario.wait_for_failure_on_host_b("if that host is gone, delete")
    folder = StateFolder(scenario.airflow.shared)
    (name,) = folder.list_job_names()
    shutil.rmtree(folder.job_folder(name).path)
    scenario.say("deleted the folder of the job")
    scenario.wait_for_job()
    scenario.finish("host-b")


#: Id of the DAG, and what happens to its run. In this order: some leave a worker or a host dead.
SCENARIOS: tuple[tuple[str, Callable[[Scenario], None]], ...] = (
    ("deferred", return_to_host_of_job),
    ("deferred", return_to_wrong_host),
    ("waiting", kill_worker),
    ("deferred_pinned", return_to_host_of_job),
    ("waiting_pinned", kill_pinned_worker),
    ("deferred_shared", return_to_other_host),
    ("waiting_shared", retry_on_other_host),
    ("waiting_shared", lose_host),
)


def run_scenarios(airflow: AirflowOnHosts) -> list[str]:
    api = Api(airflow)
    problems: list[str] = []
    table = Table("DAG", "try", "host", "state", box=None)
    for dag, run_steps in SCENARIOS:
        print(f"\n{dag}: {run_steps.__doc__}", flush=True)
        scenario = Scenario(airflow, api, dag)
        run_steps(scenario)
        scenario.add_tries(table)
        problems += scenario.problems
    Console(width=100).print(table)
    return problems


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


def main() -> int:
    """Run all scenarios; return 0 if everything was as expected."""
    if missing := find_missing_requirement():
        print(f"airflow-hosts: {missing}", file=sys.stderr)
        return 1
    airflow = AirflowOnHosts(ROOT / ".airflow" / "hosts")
    return run_checks("airflow-hosts", airflow, lambda: run_scenarios(airflow))


if __name__ == "__main__":
    sys.exit(main())
