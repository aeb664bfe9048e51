"""An Airflow on this machine: its folder, its settings, its four processes, and what an earlier one left of them.

The processes are started one by one, and not by `airflow standalone`, so that one of them can be restarted alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import filelock
import httpx
import psutil
import tenacity

ROOT = Path(__file__).resolve().parents[1]

#: What serves the others comes first, and goes last.
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")

_PATIENCE = 180  # seconds; 15 are enough on two idle cores
_FAREWELL = 20  # seconds that each process has to end by itself

#: Ports that no system hands out by itself: between the choice and its use nothing takes one by accident.
QUIET_PORTS = range(20_000, 32_000)

Found = TypeVar("Found")


class AirflowHereError(Exception):
    """It does not go on; one line for the person who watches."""


def until(look: Callable[[], Found], what: str, patience: float = _PATIENCE) -> Found:
    """Wait for something to become true, and return it.

    Args:
        look: Tells what is true now.
        what: What is waited for, for the message.
        patience: Seconds.

    Raises:
        AirflowHereError: It did not in that time.
    """
    waiting = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda found: not found),
        wait=tenacity.wait_fixed(0.3),
        stop=tenacity.stop_after_delay(patience),
    )
    try:
        return waiting(look)
    except tenacity.RetryError:
        raise AirflowHereError(f"{what}: not within {patience:.0f} s") from None


class AirflowHere:
    """A context manager: Airflow runs inside it. What it knows stays in its folder, and is there the next time.

    Args:
        folder: For everything that it and the TrainJobs write.
        settings: Further environment variables.
        anew: Forget what it knew.
        ports: Of the API server and of the logs of workers and triggerer, if they are free; another for each that is
            not. These are Airflow's usual ones.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        anew: bool = False,
        ports: Sequence[int] = (8080, 8793, 8794),
    ) -> None:
        self.folder = folder
        self.jobs = folder / "trainjobs"
        self._settings = dict(settings or {})
        self._anew = anew
        self._wanted_ports = ports
        self._lock = filelock.FileLock(folder.with_suffix(".lock"))
        self._leaders: dict[str, psutil.Popen] = {}
        self._record = folder / "processes.json"

    def __enter__(self) -> AirflowHere:
        """Start everything, and wait until it is healthy."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise AirflowHereError(f"one runs already in {self.folder}; end it first") from None
        try:
            self._prepare()
            started = datetime.now(timezone.utc)
            for name in COMPONENTS:
                self._start(name)
            self._wait_for_health(started)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        try:
            self._end([name for name in COMPONENTS if name != "api-server"])
            self._end(["api-server"])
        finally:
            self._lock.release()

    @cached_property
    def _ports(self) -> list[int]:
        """Chosen late: an earlier Airflow of the same folder has ended by then."""
        return [_free_port(wanted) for wanted in self._wanted_ports]

    @property
    def port(self) -> int:
        """Of the API server."""
        return self._ports[0]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """Of the user `admin`, who is the only one."""
        return str(json.loads(self._passwords.read_text(encoding="utf-8"))["admin"])

    def log_of(self, component: str) -> Path:
        """Return the file of what a process says."""
        return self.folder / f"{component}.log"

    def ended(self) -> list[str]:
        """Return which processes have ended by themselves."""
        return [name for name, leader in self._leaders.items() if leader.poll() is not None]

    def restart(self, component: str) -> None:
        """End a process, start it anew and wait until it is healthy."""
        self._end([component])
        started = datetime.now(timezone.utc)
        self._start(component)
        self._wait_for_health(started, [component])

    @property
    def environment(self) -> dict[str, str]:
        """Of its processes."""
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
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
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
        self._end_leftovers()
        if self._anew:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)  # the password is in there
        self._migrate()

    def _migrate(self) -> None:
        """Make the database, unless it is there; one that is cut short does not get its name."""
        if self._database.exists():
            return
        unfinished = self._database.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        with self.log_of("migrate").open("w") as log:
            command = [sys.executable, "-m", "airflow", "db", "migrate"]
            code = subprocess.run(command, env=self._environment(unfinished), stdout=log, stderr=log).returncode
        if code:
            raise AirflowHereError(f"Airflow's database could not be made; see {self.log_of('migrate')}")
        unfinished.replace(self._database)

    def _start(self, component: str) -> None:
        """Each process has a session of its own: Ctrl-C is for us, and what it starts can be found."""
        with self.log_of(component).open("a") as log:
            self._leaders[component] = psutil.Popen(
                [sys.executable, "-m", "airflow", component],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        leaders = {name: [leader.pid, leader.create_time()] for name, leader in self._leaders.items()}
        self._record.write_text(json.dumps(leaders), encoding="utf-8")

    def _wait_for_health(self, since: datetime, components: list[str] | None = None) -> None:
        wanted = [name.replace("-", "_") for name in components or COMPONENTS if name != "api-server"]

        def healthy() -> bool:
            if ended := self.ended():
                raise AirflowHereError(f"Airflow's {ended[0]} has ended; see {self.log_of(ended[0])}")
            try:
                health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=30, trust_env=False).json()
            except (httpx.HTTPError, ValueError):
                return False
            return all(_is_healthy(health[name], f"latest_{name}_heartbeat", since) for name in wanted)

        until(healthy, "Airflow becomes healthy")

    def _end(self, components: list[str]) -> None:
        """Ask them to end, and kill what has not; TrainJobs have sessions of their own, and go on."""
        leaders = [self._leaders.pop(name) for name in components if name in self._leaders]
        try:
            for leader in leaders:
                with suppress(psutil.NoSuchProcess):
                    leader.terminate()
            psutil.wait_procs(leaders, timeout=_FAREWELL)
        finally:
            for leader in leaders:
                _kill_session(leader.pid)
            psutil.wait_procs(leaders)

    def _end_leftovers(self) -> None:
        """An Airflow whose starter was killed goes on; two of them would run every task twice."""
        with suppress(FileNotFoundError, ValueError):
            for pid, created in json.loads(self._record.read_text(encoding="utf-8")).values():
                if not _is_another(pid, created):
                    _kill_session(pid)


def _free_port(wanted: int) -> int:
    """Return the wanted port of this machine, or any other if it is taken."""
    for port in (wanted, *random.sample(QUIET_PORTS, 100)):
        with socket.socket() as probe, suppress(OSError):
            # As servers do: connections that have ended a moment ago do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            probe.listen()
            return port
    raise AirflowHereError("no port is free on 127.0.0.1")


def _is_healthy(said: dict[str, Any], heartbeat: str, since: datetime) -> bool:
    """Those that ran before us have left heartbeats as well."""
    latest = said.get(heartbeat)
    return said["status"] == "healthy" and latest is not None and datetime.fromisoformat(latest) >= since


def _is_another(pid: int, created: float) -> bool:
    """Whether the number was given to a process that has nothing to do with us."""
    try:
        return abs(psutil.Process(pid).create_time() - created) > 1
    except psutil.NoSuchProcess:
        return False


def _kill_session(session: int) -> None:
    """Kill a process and all that it started, unless they made sessions of their own."""
    for pid in _session(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session(session: int) -> Iterator[int]:
    for pid in psutil.pids():
        with suppress(OSError):
            if os.getsid(pid) == session:
                yield pid
