"""Airflow on this machine: its folder, settings and four processes, and cleanup of processes of an earlier run.

The processes are started separately and not with `airflow standalone`, so that one of them can be restarted.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import tenacity

from trainer_core.node import locks

ROOT = Path(__file__).resolve().parents[1]

#: In the order of their start. The API server serves the others, so it is stopped last.
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")

_TIMEOUT = 450  # seconds; 15 are enough on two idle cores
_STOP_TIMEOUT = 20  # seconds that each process has to end by itself

#: Command that creates Airflow's database, or migrates it to this version.
MIGRATE = (sys.executable, "-m", "airflow", "db", "migrate")

#: Ports outside the ephemeral range of the kernel and that of local TrainJobs, so that no client socket and no job
#: takes one between the choice and its use.
UNUSED_PORTS = range(12_000, 20_000)

Value = TypeVar("Value")

_began = time.monotonic()


class AirflowHereError(Exception):
    """Airflow cannot be started or used; the message is one line."""


def wait_until(read: Callable[[], Value], what: str, timeout: float = _TIMEOUT) -> Value:
    """Wait until a function returns a true value, and return the value.

    Args:
        read: Called every 0.3 seconds.
        what: Description of the condition, for the message.
        timeout: Seconds to wait.

    Raises:
        AirflowHereError: The timeout has passed.
    """
    waiting = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda value: not value),
        wait=tenacity.wait_fixed(0.3),
        stop=tenacity.stop_after_delay(timeout),
    )
    try:
        return waiting(read)
    except tenacity.RetryError:
        raise AirflowHereError(f"{what}: not true after {timeout:.0f} s") from None


class AirflowHere:
    """Context manager that runs Airflow. Its data stays in the folder for the next start.

    Args:
        folder: Folder for all files of Airflow and its TrainJobs.
        settings: Further environment variables.
        fresh: Delete the data of earlier starts.
        ports: Preferred ports of the API server and of the log servers of worker and triggerer; a port in use is
            replaced by another one. The defaults are Airflow's own.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        fresh: bool = False,
        ports: Sequence[int] = (8080, 8793, 8794),
    ) -> None:
        self.folder = folder
        self.jobs = folder / "trainjobs"
        self.command = folder / "airflow"
        self._settings = dict(settings or {})
        self._fresh = fresh
        self._preferred_ports = ports
        self._lock: int | None = None
        self._leaders: dict[str, psutil.Popen] = {}
        self._record = folder / "processes.json"

    def __enter__(self) -> AirflowHere:
        """Start all processes and wait until they are healthy."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = locks.acquire(self.folder.with_suffix(".lock"), 0)
        except BlockingIOError:
            raise AirflowHereError(f"an Airflow already runs in {self.folder}; stop it first") from None
        try:
            self._prepare()
            self._write_command()
            started = datetime.now(timezone.utc)
            for name in COMPONENTS:
                self._start(name)
            self._wait_for_health(started)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stop([name for name in COMPONENTS if name != "api-server"])
            self._stop(["api-server"])
        finally:
            if self._lock is not None:
                locks.release(self._lock)

    @cached_property
    def _ports(self) -> list[int]:
        """Ports to use; chosen after the processes of an earlier run have been stopped."""
        return [_find_free_port(wanted) for wanted in self._preferred_ports]

    @property
    def port(self) -> int:
        return self._ports[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        return str(json.loads(self._passwords.read_text(encoding="utf-8"))["admin"])

    def get_log_file(self, component: str) -> Path:
        return self.folder / f"{component}.log"

    def list_exited(self) -> list[str]:
        return [name for name, leader in self._leaders.items() if leader.poll() is not None]

    def restart(self, component: str) -> None:
        """Restart a process and wait until it is healthy."""
        self._stop([component])
        started = datetime.now(timezone.utc)
        self._start(component)
        self._wait_for_health(started, [component])

    @property
    def environment(self) -> dict[str, str]:
        return self._environment(self._database)

    @property
    def _passwords(self) -> Path:
        return self.folder / "passwords.json"

    @property
    def _database(self) -> Path:
        """By version: another Airflow may need another schema."""
        return self.folder / f"airflow-{version('apache-airflow')}.db"

    def _environment(self, database: Path) -> dict[str, str]:
        """Airflow keeps to its folder and its port, whatever else is configured."""
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "DIGITS"))}
        return {
            **ours,
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            # All processes write into one file: each waits for the others.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
            "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
            # The api-server loads what answers tasks when the first one asks, for half a minute on a busy machine.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
            # The end of a task is seen after a second, and not after five.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW__TRAINJOB__BACKEND": "local",
            "TRAINJOB_HOME": str(self.jobs),
            "TRAINJOB_BACKEND": "local",
            "PYTHONWARNINGS": "ignore",
            "NO_COLOR": "1",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self._ports[1]),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self._ports[2]),
            "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1",
            **self._settings,
        }

    def _prepare(self) -> None:
        self._stop_leftover_processes()
        if self._fresh:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)  # the password is in there
        self._migrate()

    def _migrate(self) -> None:
        """Create the database if it does not exist; it gets its name only when the migration is complete."""
        if self._database.exists():
            return
        unfinished = self._database.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        self._create("Airflow's database", "migrate", MIGRATE, env=self._environment(unfinished))
        unfinished.replace(self._database)

    def _create(self, what: str, log_name: str, command: Sequence[str], **options: Any) -> None:
        """Run a command that creates something, and wait for its end."""
        log_file = self.get_log_file(log_name)
        with log_file.open("w") as log:
            if subprocess.run(command, stdout=log, stderr=log, **options).returncode:
                raise AirflowHereError(f"{what} could not be created; see {log_file}")

    def _write_command(self) -> None:
        """Write a program that runs Airflow's command with the settings of this Airflow."""
        changed = {name: value for name, value in self.environment.items() if os.environ.get(name) != value}
        settings = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in changed.items())
        self.command.write_text(
            f'#!/bin/sh\n{settings}exec {shlex.quote(sys.executable)} -m airflow "$@"\n', encoding="utf-8"
        )
        self.command.chmod(0o700)

    def _start(self, component: str) -> None:
        self._start_process(component, [sys.executable, "-m", "airflow", component], env=self.environment)

    def _start_process(self, name: str, command: Sequence[str], **options: Any) -> psutil.Popen:
        """Start a process in its own session, so that Ctrl-C does not reach it and its child processes can be found."""
        with self.get_log_file(name).open("a") as log:
            self._leaders[name] = psutil.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **options
            )
        leaders = {name: [leader.pid, leader.create_time()] for name, leader in self._leaders.items()}
        self._record.write_text(json.dumps(leaders), encoding="utf-8")
        return self._leaders[name]

    def _wait_for_health(self, since: datetime, components: list[str] | None = None) -> None:
        required = [name.replace("-", "_") for name in components or COMPONENTS if name != "api-server"]

        def healthy() -> bool:
            if exited := self.list_exited():
                raise AirflowHereError(f"Airflow's {exited[0]} has exited; see {self.get_log_file(exited[0])}")
            try:
                health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=30, trust_env=False).json()
            except (httpx.HTTPError, ValueError):
                return False
            return all(_is_healthy(health[name], f"latest_{name}_heartbeat", since) for name in required)

        wait_until(healthy, "Airflow becomes healthy")

    def _stop(self, components: list[str]) -> None:
        """Terminate processes; kill those that do not exit in time. TrainJobs keep running in their own sessions."""
        leaders = [self._leaders.pop(name) for name in components if name in self._leaders]
        try:
            for leader in leaders:
                with suppress(psutil.NoSuchProcess):
                    leader.terminate()
            psutil.wait_procs(leaders, timeout=_STOP_TIMEOUT)
        finally:
            for leader in leaders:
                _kill_session(leader.pid)
            psutil.wait_procs(leaders)

    def _stop_leftover_processes(self) -> None:
        """Stop processes of an earlier run whose starter was killed; two Airflows would run every task twice."""
        with suppress(FileNotFoundError, ValueError):
            for pid, created in json.loads(self._record.read_text(encoding="utf-8")).values():
                if not _is_reused_pid(pid, created):
                    _kill_session(pid)


def run_checks(command: str, airflow: AirflowHere, check: Callable[[], list[str]]) -> int:
    """Run checks while Airflow runs, and print their problems; return the exit code.

    Args:
        command: Name of the make target, for the messages.
        airflow: The Airflow, which is started before and stopped after the checks.
        check: Returns the problems.
    """
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    try:
        say("starting Airflow")
        with airflow:
            try:
                problems = check()
            finally:
                say("stopping Airflow")
    except (AirflowHereError, httpx.HTTPError) as error:
        problems = [str(error)]
    except KeyboardInterrupt:
        problems = ["interrupted"]
    for line in problems:
        print(f"{command}: {line}", file=sys.stderr)
    say(f"FAILED; the logs are in {airflow.folder}" if problems else "passed")
    return 1 if problems else 0


def say(line: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.monotonic() - _began:5.0f} s  {line}", flush=True)


def _find_free_port(preferred: int) -> int:
    for port in (preferred, *random.sample(UNUSED_PORTS, 100)):
        with socket.socket() as probe, suppress(OSError):
            # As servers do: a port with connections in TIME_WAIT can be used.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            probe.listen()
            return port
    raise AirflowHereError("127.0.0.1 has no free port")


def _is_healthy(component: dict[str, Any], heartbeat: str, since: datetime) -> bool:
    """Return whether a component is healthy; heartbeats of an earlier run are ignored."""
    latest = component.get(heartbeat)
    return component["status"] == "healthy" and latest is not None and datetime.fromisoformat(latest) >= since


def _is_reused_pid(pid: int, created: float) -> bool:
    """Return whether the pid now belongs to an unrelated process."""
    try:
        return abs(psutil.Process(pid).create_time() - created) > 1
    except psutil.NoSuchProcess:
        return False


def _kill_session(session: int) -> None:
    """Kill a process and the processes that it started, except those in their own sessions."""
    for pid in _list_session_pids(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _list_session_pids(session: int) -> Iterator[int]:
    for pid in psutil.pids():
        with suppress(OSError):
            if os.getsid(pid) == session:
                yield pid
