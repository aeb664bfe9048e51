"""`make airflow-up`: a complete Airflow on this machine with the example DAGs, until Ctrl-C.

All data is in `.airflow/` and is used by the next start: runs, logs, models and connections. TrainJobs keep running
after Airflow stops, and the next start attaches to them.
"""

from __future__ import annotations

import signal
import sys
import time

from airflow_here import ROOT, AirflowHere, AirflowHereError

from trainer_core import LocalProcessBackendConfig, TrainerClient


def main() -> int:
    """Run Airflow until Ctrl-C; return 0 unless it stopped by itself."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    airflow = AirflowHere(ROOT / ".airflow" / "up")
    try:
        say(f"starting, which takes about 15 seconds; the logs are in {airflow.folder}")
        with airflow:
            try:
                print_welcome(airflow)
                return watch(airflow)
            finally:
                say("stopping")
    except AirflowHereError as error:
        print(f"airflow-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print_running_jobs(airflow)
        return 0


def say(line: str) -> None:
    print(f"airflow-up: {line}", flush=True)


def print_welcome(airflow: AirflowHere) -> None:
    print(f"""
  Airflow:    {airflow.url}
  Log in:     user admin, password {airflow.password}
  TrainJobs:  {airflow.url}/trainjobs/
  Command:    {airflow.command.relative_to(ROOT)} dags list
  Try:        unpause ingest_digits and retrain_digits_one_task, and trigger them in this order
  Stop:       Ctrl-C
""")
    sys.stdout.flush()


def watch(airflow: AirflowHere) -> int:
    """Wait until a process of Airflow has exited, which is an error."""
    while not (exited := airflow.list_exited()):
        time.sleep(1)
    print(f"airflow-up: Airflow's {exited[0]} has exited; see {airflow.get_log_file(exited[0])}", file=sys.stderr)
    return 1


def print_running_jobs(airflow: AirflowHere) -> None:
    jobs = TrainerClient(LocalProcessBackendConfig(home=airflow.jobs)).list_jobs()
    alive = [job.name for job in jobs if job.status not in ("Complete", "Failed")]
    if alive:
        say(f"these TrainJobs keep running: {', '.join(alive)}")
    say("stopped; `make airflow-up` continues with the same data")


if __name__ == "__main__":
    sys.exit(main())
