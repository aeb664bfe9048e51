"""The demo: Airflow downloads a dataset, trains a model on two processes, waits for it and promotes it.

Runs the example DAGs with `airflow dags test`: task runner, XComs, Assets and retries in one process with an SQLite
database, in about 30 s on 2 cores. A scheduler with API server and triggerer would need 14 s more to start, and would
leave processes behind if it is killed.

All files are in `.demo/`. The demo can be killed and run again at any time: the database appears only when it is
complete, and a TrainJob that still runs keeps running beside the new one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from trainer_core import LocalProcessBackendConfig, TrainerClient, TrainJob
from trainer_core.tracking.model_registry import get_local_path

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / ".demo"
AIRFLOW_HOME = DEMO / "airflow"
JOBS = DEMO / "trainjobs"
#: One database per version of Airflow, because the schemas differ.
DATABASE = AIRFLOW_HOME / f"airflow-{version('apache-airflow')}.db"

_STARTING = re.compile(r"\[DAG TEST\] starting.* task_id=(\w+)")
_OURS = re.compile(r"^\S+ \[\w+ *\] (?P<message>.*?) +\[(airflow\.task\.[\w.]*airflow_provider[\w.]*|retraining)\]")
_SKIPPED = re.compile(r"^\S+ \[\w+ *\] Skipping task\. .*reason='(?P<message>.*)'")
_ERROR = re.compile(r"^\S+ \[(error|critical) *\] (?P<message>.*?) +\[")
_RAISED = re.compile(r"^(?:\w+\.)*(?P<message>\w+(?:Error|Exception): .+)")


def main() -> int:
    """Run the demo; return 0 if the model was trained."""
    started = datetime.now(timezone.utc)
    AIRFLOW_HOME.mkdir(parents=True, exist_ok=True)
    try:
        create_database()
        for dag in ("ingest_digits", "retrain_digits"):
            run_dag(dag)
        show(find_latest_job(started))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; `make demo` starts again", file=sys.stderr)
        return 130
    return 0


class DemoError(Exception):
    """The demo cannot continue; the message is one line."""


def create_database() -> None:
    """Create Airflow's database if it does not exist."""
    if DATABASE.exists():
        return
    print("Airflow: creating its database (SQLite)", flush=True)
    # The name is unique to this run, because the migration of a killed demo may still be running.
    unfinished = DATABASE.with_suffix(f".{os.getpid()}.unfinished")
    unfinished.unlink(missing_ok=True)
    log = AIRFLOW_HOME / "migrate.log"
    with log.open("w") as file:
        code = subprocess.run(
            [*get_airflow_command(), "db", "migrate"], env=build_environment(unfinished), stdout=file, stderr=file
        ).returncode
    if code:
        raise DemoError(f"Airflow's database could not be created; see {log}")
    unfinished.replace(DATABASE)


def run_dag(dag: str) -> None:
    print(f"DAG {dag}", flush=True)
    log = AIRFLOW_HOME / f"{dag}.log"
    command = [*get_airflow_command(), "dags", "test", dag]
    with subprocess.Popen(
        command, env=build_environment(DATABASE), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        errors = show_lines(copy_lines(process.stdout or (), log))
    if process.returncode or errors:
        reason = errors[-1] if errors else f"exit code {process.returncode}"
        raise DemoError(f"DAG {dag} failed: {reason}; see {log}")


def copy_lines(lines: Iterable[str], log: Path) -> Iterator[str]:
    with log.open("w") as file:
        for line in lines:
            file.write(line)
            file.flush()
            yield line


def show_lines(lines: Iterable[str]) -> list[str]:
    """Print the important lines of a DAG run's log; return its error messages, the most specific one last."""
    errors = []
    for line in lines:
        if task := _STARTING.search(line):
            print(f"  task {task[1]}", flush=True)
        elif (provider_line := _OURS.match(line) or _SKIPPED.match(line)) and not provider_line["message"].startswith(
            "Success criteria"
        ):
            print(f"    {provider_line['message'][:110]}", flush=True)
        elif error := _ERROR.match(line):
            errors.append(error["message"])
        elif errors and (raised := _RAISED.match(line)):
            errors.append(raised["message"])
    return errors


def find_latest_job(since: datetime) -> TrainJob:
    jobs = TrainerClient(LocalProcessBackendConfig(home=JOBS)).list_jobs()
    submitted = [job for job in jobs if job.num_nodes and job.creation_timestamp >= since]
    if not submitted:
        raise DemoError(f"the DAG submitted no TrainJob; none is in {JOBS}")
    return submitted[0]


def show(job: TrainJob) -> None:
    outcome = TrainerClient(LocalProcessBackendConfig(home=JOBS)).get_job_outcome(job.name)
    if not outcome.succeeded:
        raise DemoError(f"TrainJob {job.name} is Failed: {outcome.diagnosis}")
    trainjob = Path(sys.executable).with_name("trainjob")
    command = trainjob.relative_to(Path.cwd()) if trainjob.is_relative_to(Path.cwd()) else trainjob
    print()
    print(f"TrainJob:       {job.name}")
    print(f"Status:         {outcome.status}")
    print(f"Test accuracy:  {outcome.metrics['accuracy']:.3f}")
    print(f"Model:          {get_local_path(outcome.artifacts['model'])}")
    print(f"Logs:           {command} --home '{JOBS}' logs {job.name}")


def get_airflow_command() -> list[str]:
    command = shutil.which("airflow", path=str(Path(sys.executable).parent))
    if command is None:
        raise DemoError(f"Airflow is not installed for {sys.executable}; `make demo` installs it")
    return [command]


def build_environment(database: Path) -> dict[str, str]:
    """Return an environment in which Airflow uses only the demo's folder."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "DIGITS"))}
    return {
        **inherited,
        "AIRFLOW_HOME": str(AIRFLOW_HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__TRAINJOB__BACKEND": "local",
        "TRAINJOB_HOME": str(JOBS),
        "TRAINJOB_BACKEND": "local",
        "PYTHONWARNINGS": "ignore",
        "NO_COLOR": "1",
        # Tasks of `dags test` call Airflow in their own process, which must not go through a proxy.
        "NO_PROXY": "localhost,127.0.0.1",
    }


if __name__ == "__main__":
    sys.exit(main())
