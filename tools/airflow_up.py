"""`make airflow-up`: a whole Airflow on this machine, with the example DAGs, until Ctrl-C.

Everything lies in `.airflow/`, and is there again the next time: runs, logs, models and connections. TrainJobs do not
end with Airflow; the next one finds them.
"""

from __future__ import annotations

import signal
import sys
import time

from airflow_here import ROOT, AirflowHere, AirflowHereError

from trainer_core import LocalProcessBackendConfig, TrainerClient


def main() -> int:
    """Run Airflow until somebody or something ends it; 0 when it was a person."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    airflow = AirflowHere(ROOT / ".airflow" / "up")
    try:
        say(f"starting, which takes a quarter of a minute; its logs are in {airflow.folder}")
        with airflow:
            welcome(airflow)
            try:
                return watch(airflow)
            finally:
                say("ending")
    except AirflowHereError as error:
        print(f"airflow-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        farewell(airflow)
        return 0


def say(line: str) -> None:
    """Tell the person who watches, at once."""
    print(f"airflow-up: {line}", flush=True)


def welcome(airflow: AirflowHere) -> None:
    """Print where it is and how to log in."""
    print(f"""
  Airflow:    {airflow.url}
  Log in:     user admin, password {airflow.password}
  TrainJobs:  {airflow.url}/trainjobs/
  Try:        unpause ingest_digits and retrain_digits_one_task, and trigger them in this order
  End:        Ctrl-C
""")
    sys.stdout.flush()


def watch(airflow: AirflowHere) -> int:
    """Return when a part of Airflow has ended, which none should."""
    while not (ended := airflow.ended()):
        time.sleep(1)
    print(f"airflow-up: Airflow's {ended[0]} has ended; see {airflow.log_of(ended[0])}", file=sys.stderr)
    return 1


def farewell(airflow: AirflowHere) -> None:
    """Say what goes on."""
    jobs = TrainerClient(LocalProcessBackendConfig(home=airflow.jobs)).list_jobs()
    alive = [job.name for job in jobs if job.status not in ("Complete", "Failed")]
    if alive:
        say(f"still training, for the next Airflow to find: {', '.join(alive)}")
    say("ended; `make airflow-up` goes on where it was")


if __name__ == "__main__":
    sys.exit(main())
