"""`make airflow-e2e`: a whole Airflow retrains, and nothing that dies on the way makes a second TrainJob.

    ingest_digits             makes the dataset
    retrain_digits_one_task   started by hand; deferred; the triggerer is restarted meanwhile; promotes
    ingest_digits             makes the dataset new, which starts
    retrain_digits            whose worker is killed right after it has submitted; deferred; promotes a better model

Everything is done and read through Airflow's REST API. Only the worker is killed by its process, and the backend itself
is asked which TrainJobs there are. Takes two to three minutes on two cores.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import psutil
from airflow_here import ROOT, AirflowHere, AirflowHereError, until
from airflow_rest import Api, Run
from rich.console import Console
from rich.table import Table

from trainer_core import LocalProcessBackendConfig, TrainerClient, TrainJob

#: Long enough for a triggerer to go and come; a model that the next one beats.
_SLOW_AND_POOR = {"epochs": 60, "learning_rate": 0.00001}

#: A worker that was killed is missed after half a minute, and not after Airflow's five.
_SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
}

_began = time.monotonic()


def main() -> int:
    """Run it; 0 when everything was as it must be."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    airflow = AirflowHere(ROOT / ".airflow" / "e2e", _SETTINGS, anew=True)
    jobs = TrainerClient(LocalProcessBackendConfig(home=airflow.jobs))
    try:
        say("starting Airflow")
        with airflow:
            try:
                wrong = rehearse(airflow, jobs)
            finally:
                say("ending Airflow")
    except (AirflowHereError, httpx.HTTPError) as error:
        wrong = [str(error)]
    except KeyboardInterrupt:
        wrong = ["interrupted"]
    for line in wrong:
        print(f"airflow-e2e: {line}", file=sys.stderr)
    say(f"FAILED; its logs are in {airflow.folder}" if wrong else "passed")
    return 1 if wrong else 0


def say(line: str) -> None:
    """Tell the person who watches, with the seconds since the beginning."""
    print(f"{time.monotonic() - _began:5.0f} s  {line}", flush=True)


def rehearse(airflow: AirflowHere, jobs: TrainerClient) -> list[str]:
    """Let everything happen, show it, and return what was wrong."""
    api = Api(airflow)
    try:
        first = ingest(api)
        one_task = while_the_triggerer_restarts(airflow, api, jobs)
        retraining, second = when_the_dataset_is_new(api, jobs)
        runs = [first, one_task, second, retraining]
        show(runs, jobs)
        return [*tasks_that_went_wrong(runs), *jobs_that_went_wrong(runs, jobs), *events_that_are_missing(api, runs)]
    finally:
        for job in jobs.list_jobs():
            jobs.delete_job(job.name)


def ingest(api: Api) -> Run:
    """Make the dataset new."""
    api.unpause("ingest_digits")
    run = api.start("ingest_digits")
    say("started ingest_digits by hand")
    run.wait()
    return run


def while_the_triggerer_restarts(airflow: AirflowHere, api: Api, jobs: TrainerClient) -> Run:
    """Restart the triggerer while it waits for a training."""
    api.unpause("retrain_digits_one_task")
    run = api.start("retrain_digits_one_task", _SLOW_AND_POOR)
    say("started retrain_digits_one_task by hand")
    run.wait_for_task("retrain", "deferred")
    say("the task is deferred; restarting the triggerer")
    airflow.restart("triggerer")
    (job,) = trainings(jobs)
    say(f"the triggerer is back; the TrainJob is {job.status}")
    run.wait()
    say(f"the run is {run.state()}")
    return run


def when_the_dataset_is_new(api: Api, jobs: TrainerClient) -> tuple[Run, Run]:
    """Make the dataset new, and kill the worker that submits the training which follows."""
    api.unpause("retrain_digits")
    api.started("retrain_digits", "scheduled").end()  # that of last night, which would train the same model
    ingestion = ingest(api)
    run = api.started("retrain_digits", "asset_triggered")
    say("the new dataset has started retrain_digits")
    kill_the_worker_that_submits(run, jobs)
    say("killed the worker right after it had submitted; Airflow misses it, and tries again")
    run.wait()
    say(f"the run is {run.state()}")
    return run, ingestion


def kill_the_worker_that_submits(run: Run, jobs: TrainerClient) -> None:
    """Kill it between the TrainJob's creation and the end of the task."""
    before = len(trainings(jobs))
    run.wait_for_task("train", "running")
    ours = until(lambda: list(processes_of(run.task("train")["id"])), "the task train has a process")
    pause, patience = threading.Event(), time.monotonic() + 60
    while len(trainings(jobs)) == before and time.monotonic() < patience:
        pause.wait(0.02)
    for process in ours:
        process.kill()


def processes_of(task_instance: str) -> Iterator[psutil.Process]:
    """The process that runs a task, and before it the worker that watches over it; Airflow names both by the task."""
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or ())
        if title.startswith("airflow worker") and task_instance in title:
            yield process


def trainings(jobs: TrainerClient) -> list[TrainJob]:
    """The TrainJobs there are, without those that only fetch something."""
    return [job for job in jobs.list_jobs() if job.num_nodes]


def show(runs: list[Run], jobs: TrainerClient) -> None:
    """Print what Airflow and the backend say about every task."""
    status = {job.name: job.status for job in jobs.list_jobs()}
    table = Table("DAG", "started", "task", "tries", "TrainJob", box=None)
    for run in runs:
        for task in run.tasks():
            name = run.job(task["task_id"])
            tries = ", ".join(run.tries(task["task_id"]))
            kind = run.run_id.partition("__")[0]
            table.add_row(run.dag, kind, task["task_id"], tries, f"{name} {status.get(name)}" if name else "")
    Console(width=120).print(table)


def tasks_that_went_wrong(runs: list[Run]) -> Iterator[str]:
    """Every task succeeds once; only the one whose worker was killed has another try, which failed."""
    for run in runs:
        for task in run.tasks():
            killed = (run.dag, task["task_id"]) == ("retrain_digits", "train")
            wanted = ["failed", "success"] if killed else ["success"]
            tries = run.tries(task["task_id"])
            if tries != wanted:
                yield f"task {task['task_id']} of {run.dag} has the tries {tries}, not {wanted}"


def jobs_that_went_wrong(runs: list[Run], jobs: TrainerClient) -> Iterator[str]:
    """One TrainJob trains for each run, and all tasks of the run speak of it."""
    trained = {job.name for job in trainings(jobs)}
    named = []
    for run in (run for run in runs if run.dag != "ingest_digits"):
        names = {run.job(task["task_id"]) for task in run.tasks()} & trained
        if len(names) != 1:
            yield f"the tasks of {run.dag} speak of the TrainJobs {sorted(names)}, not of one"
        named.extend(names)
    if sorted(named) != sorted(trained):
        yield f"the backend has the TrainJobs {sorted(trained)}, the runs know of {sorted(named)}"


def events_that_are_missing(api: Api, runs: list[Run]) -> Iterator[str]:
    """The dataset started the second training, and both promoted their model, once."""
    *_, retraining = runs
    if set(retraining.causes()) != {("digits-dataset", "ingest_digits")}:
        yield f"retrain_digits was started by {retraining.causes()}, not by the dataset of ingest_digits"
    for dag in ("retrain_digits_one_task", "retrain_digits"):
        promoted = [event["name"] for event in api.asset_events(dag)]
        if promoted != ["digits-model"]:
            yield f"{dag} has made the Assets {promoted} new, not digits-model once"


if __name__ == "__main__":
    sys.exit(main())
