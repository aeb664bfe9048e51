"""The demo: Airflow fetches a dataset, trains a model on two processes, waits for it and promotes it.

Runs the example DAGs by `airflow dags test`: real task runners, XComs, Assets and retries on an embedded SQLite, one
process, 30 s in all on 2 cores. A scheduler with its API server and triggerer needs 14 s more only to come up, and
leaves processes behind when it is killed; what a person sees of the tasks is the same.

Everything lies in `.demo/`. It can be stopped at any moment and run again: the database appears whole or not at all,
and a TrainJob that is still training goes on beside the new one.
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

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / ".demo"
AIRFLOW_HOME = DEMO / "airflow"
JOBS = DEMO / "trainjobs"
#: By version: another Airflow may need another schema.
DATABASE = AIRFLOW_HOME / f"airflow-{version('apache-airflow')}.db"

_STARTING = re.compile(r"\[DAG TEST\] starting.* task_id=(\w+)")
_OURS = re.compile(r"^\S+ \[\w+ *\] (?P<message>.*?) +\[(airflow\.task\.[\w.]*airflow_provider[\w.]*|retraining)\]")
_SKIPPED = re.compile(r"^\S+ \[\w+ *\] Skipping task\. .*reason='(?P<message>.*)'")
_ERROR = re.compile(r"^\S+ \[(error|critical) *\] (?P<message>.*?) +\[")
_RAISED = re.compile(r"^(?:\w+\.)*(?P<message>\w+(?:Error|Exception): .+)")


def main() -> int:
    """Run the demo; 0 when the model was trained."""
    started = datetime.now(timezone.utc)
    AIRFLOW_HOME.mkdir(parents=True, exist_ok=True)
    try:
        prepare()
        for dag in ("ingest_digits", "retrain_digits"):
            run_dag(dag)
        show(latest_job(started))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; `make demo` starts again", file=sys.stderr)
        return 130
    return 0


class DemoError(Exception):
    """The demo cannot go on; one line for the person who watches."""


def prepare() -> None:
    """Make Airflow's database, unless it is there."""
    if DATABASE.exists():
        return
    print("Airflow: making its database (SQLite)", flush=True)
    # Of this run alone: the migration of a demo that was killed may still be writing.
    unfinished = DATABASE.with_suffix(f".{os.getpid()}.unfinished")
    unfinished.unlink(missing_ok=True)
    log = AIRFLOW_HOME / "migrate.log"
    with log.open("w") as file:
        code = subprocess.run(
            [*airflow(), "db", "migrate"], env=environment(unfinished), stdout=file, stderr=file
        ).returncode
    if code:
        raise DemoError(f"Airflow's database could not be made; see {log}")
    unfinished.replace(DATABASE)


def run_dag(dag: str) -> None:
    """Run one DAG and show what its tasks do."""
    print(f"DAG {dag}", flush=True)
    log = AIRFLOW_HOME / f"{dag}.log"
    command = [*airflow(), "dags", "test", dag]
    with subprocess.Popen(
        command, env=environment(DATABASE), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        errors = show_lines(copied(process.stdout or (), log))
    if process.returncode or errors:
        reason = errors[-1] if errors else f"it ended with exit code {process.returncode}"
        raise DemoError(f"DAG {dag} failed: {reason}; see {log}")


def copied(lines: Iterable[str], log: Path) -> Iterator[str]:
    """Pass lines on, and keep them in a file."""
    with log.open("w") as file:
        for line in lines:
            file.write(line)
            file.flush()
            yield line


def show_lines(lines: Iterable[str]) -> list[str]:
    """Print what matters of a DAG run's log; return its error messages, the one that says most last."""
    errors = []
    for line in lines:
        if task := _STARTING.search(line):
            print(f"  task {task[1]}", flush=True)
        elif (ours := _OURS.match(line) or _SKIPPED.match(line)) and not ours["message"].startswith("Success criteria"):
            print(f"    {ours['message'][:110]}", flush=True)
        elif error := _ERROR.match(line):
            errors.append(error["message"])
        elif errors and (raised := _RAISED.match(line)):
            errors.append(raised["message"])
    return errors


def latest_job(since: datetime) -> TrainJob:
    """Return the TrainJob that the retraining has made."""
    jobs = TrainerClient(LocalProcessBackendConfig(home=JOBS)).list_jobs()
    made = [job for job in jobs if job.num_nodes and job.creation_timestamp >= since]
    if not made:
        raise DemoError(f"the DAG left no TrainJob in {JOBS}")
    return made[0]


def show(job: TrainJob) -> None:
    """Print what a person wants to know at the end."""
    outcome = TrainerClient(LocalProcessBackendConfig(home=JOBS)).outcome(job.name)
    if not outcome.succeeded:
        raise DemoError(f"TrainJob {job.name} is Failed: {outcome.diagnosis}")
    trainjob = Path(sys.executable).with_name("trainjob")
    near = trainjob.relative_to(Path.cwd()) if trainjob.is_relative_to(Path.cwd()) else trainjob
    print()
    print(f"TrainJob:       {job.name}")
    print(f"Status:         {outcome.status}")
    print(f"Test accuracy:  {outcome.metrics['accuracy']:.3f}")
    print(f"Model:          {outcome.artifacts['model'].removeprefix('file://')}")
    print(f"Its logs:       {near} --home '{JOBS}' logs {job.name}")


def airflow() -> list[str]:
    """Return the command of the Airflow in this environment."""
    found = shutil.which("airflow", path=str(Path(sys.executable).parent))
    if found is None:
        raise DemoError(f"Airflow is not installed for {sys.executable}; `make demo` installs it")
    return [found]


def environment(database: Path) -> dict[str, str]:
    """Return an environment in which Airflow keeps to the demo's folder, whatever else is configured."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "DIGITS"))}
    return {
        **ours,
        "AIRFLOW_HOME": str(AIRFLOW_HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "TRAINJOB_HOME": str(JOBS),
        "TRAINJOB_BACKEND": "local",
        "PYTHONWARNINGS": "ignore",
        "NO_COLOR": "1",
        # Tasks of `dags test` speak with Airflow in their own process; a proxy has nothing to do with it.
        "NO_PROXY": "localhost,127.0.0.1",
    }


if __name__ == "__main__":
    sys.exit(main())
