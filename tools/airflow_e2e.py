"""`make airflow-e2e`: retrainings in a complete Airflow with provoked failures; each run must train one TrainJob.

    ingest_digits             creates the dataset
    retrain_digits_one_task   started manually; deferred while the triggerer is restarted; promotes a model
    ingest_digits             updates the dataset, which starts
    retrain_digits            its worker is killed right after the submission; promotes a better model

All steps use Airflow's REST API, except killing the worker process and reading the TrainJobs of the backend. Takes two
to three minutes on two cores.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import psutil
from airflow_here import ROOT, AirflowHere, run_checks, say, wait_until
from airflow_rest import Api, Run
from rich.console import Console
from rich.table import Table

from trainer_core import LocalProcessBackendConfig, TrainerClient, TrainJob

#: Long enough for a restart of the triggerer, and a model that the next one can improve.
_SLOW_AND_POOR = {"epochs": 60, "learning_rate": 0.00001}

#: A killed worker is detected after 30 seconds instead of Airflow's default of five minutes.
_SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
}


def main() -> int:
    """Run the rehearsal; return 0 if everything was as expected."""
    airflow = AirflowHere(ROOT / ".airflow" / "e2e", _SETTINGS, fresh=True)
    jobs = TrainerClient(LocalProcessBackendConfig(home=airflow.jobs))
    return run_checks("airflow-e2e", airflow, lambda: rehearse(airflow, jobs))


def rehearse(airflow: AirflowHere, jobs: TrainerClient) -> list[str]:
    """Run all steps, print the tasks, and return the problems."""
    api = Api(airflow)
    try:
        first = ingest(api)
        one_task = retrain_with_triggerer_restart(airflow, api, jobs)
        retraining, second = retrain_with_killed_worker(api, jobs)
        runs = [first, one_task, second, retraining]
        show(runs, jobs)
        return [*check_tasks(runs), *check_jobs(runs, jobs), *check_asset_events(api, runs)]
    finally:
        for job in jobs.list_jobs():
            jobs.delete_job(job.name)


def ingest(api: Api) -> Run:
    api.unpause("ingest_digits")
    run = api.start("ingest_digits")
    say("started ingest_digits manually")
    run.wait()
    return run


def retrain_with_triggerer_restart(airflow: AirflowHere, api: Api, jobs: TrainerClient) -> Run:
    """Restart the triggerer while a deferred task waits for its training."""
    api.unpause("retrain_digits_one_task")
    run = api.start("retrain_digits_one_task", _SLOW_AND_POOR)
    say("started retrain_digits_one_task manually")
    run.wait_for_task("retrain", "deferred")
    say("the task is deferred; restarting the triggerer")
    airflow.restart("triggerer")
    (job,) = list_training_jobs(jobs)
    say(f"the triggerer is restarted; the TrainJob is {job.status}")
    run.wait()
    say(f"the run is {run.state()}")
    return run


def retrain_with_killed_worker(api: Api, jobs: TrainerClient) -> tuple[Run, Run]:
    """Update the dataset, and kill the worker that submits the training of the retraining that it starts."""
    api.unpause("retrain_digits")
    api.wait_for_run("retrain_digits", "scheduled").fail()  # the scheduled run would train the same model
    ingestion = ingest(api)
    run = api.wait_for_run("retrain_digits", "asset_triggered")
    say("the new dataset has started retrain_digits")
    kill_submitting_worker(run, jobs)
    say("killed the worker right after the submission; Airflow detects it and retries the task")
    run.wait()
    say(f"the run is {run.state()}")
    return run, ingestion


def kill_submitting_worker(run: Run, jobs: TrainerClient) -> None:
    """Kill the worker between the creation of the TrainJob and the end of the task."""
    before = len(list_training_jobs(jobs))
    run.wait_for_task("train", "running")
    processes = wait_until(lambda: list(find_task_processes(run.task("train")["id"])), "the task train has a process")
    pause, timeout = threading.Event(), time.monotonic() + 60
    while len(list_training_jobs(jobs)) == before and time.monotonic() < timeout:
        pause.wait(0.02)
    for process in processes:
        process.kill()


def find_task_processes(task_instance: str) -> Iterator[psutil.Process]:
    """Yield the process of a task and the worker that supervises it; Airflow puts the task id in their titles."""
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or ())
        if title.startswith("airflow worker") and task_instance in title:
            yield process


def list_training_jobs(jobs: TrainerClient) -> list[TrainJob]:
    """Return the TrainJobs without those that only download data."""
    return [job for job in jobs.list_jobs() if job.num_nodes]


def show(runs: list[Run], jobs: TrainerClient) -> None:
    """Print a table of all tasks with their TrainJobs."""
    status = {job.name: job.status for job in jobs.list_jobs()}
    table = Table("DAG", "started", "task", "tries", "TrainJob", box=None)
    for run in runs:
        for task in run.tasks():
            name = run.job(task["task_id"])
            tries = ", ".join(run.tries(task["task_id"]))
            kind = run.run_id.partition("__")[0]
            table.add_row(run.dag, kind, task["task_id"], tries, f"{name} {status.get(name)}" if name else "")
    Console(width=120).print(table)


def check_tasks(runs: list[Run]) -> Iterator[str]:
    """Yield problems with tasks: each must succeed in its first try, except the task whose worker was killed."""
    for run in runs:
        for task in run.tasks():
            killed = (run.dag, task["task_id"]) == ("retrain_digits", "train")
            expected = ["failed", "success"] if killed else ["success"]
            tries = run.tries(task["task_id"])
            if tries != expected:
                yield f"task {task['task_id']} of {run.dag} has the tries {tries}, expected {expected}"


def check_jobs(runs: list[Run], jobs: TrainerClient) -> Iterator[str]:
    """Yield problems with TrainJobs: each run must train one, and all tasks of the run must refer to it."""
    trained = {job.name for job in list_training_jobs(jobs)}
    named: list[str] = []
    for run in (run for run in runs if run.dag != "ingest_digits"):
        names = trained.intersection(filter(None, (run.job(task["task_id"]) for task in run.tasks())))
        if len(names) != 1:
            yield f"the tasks of {run.dag} refer to the TrainJobs {sorted(names)}, expected one"
        named.extend(names)
    if sorted(named) != sorted(trained):
        yield f"the backend has the TrainJobs {sorted(trained)}, the runs refer to {sorted(named)}"


def check_asset_events(api: Api, runs: list[Run]) -> Iterator[str]:
    """Yield problems with Assets: the dataset must have started the second training; both must have promoted once."""
    *_, retraining = runs
    if set(retraining.causes()) != {("digits-dataset", "ingest_digits")}:
        yield f"retrain_digits was started by {retraining.causes()}, expected the dataset of ingest_digits"
    for dag in ("retrain_digits_one_task", "retrain_digits"):
        promoted = [event["name"] for event in api.asset_events(dag)]
        if promoted != ["digits-model"]:
            yield f"{dag} has updated the Assets {promoted}, expected digits-model once"


if __name__ == "__main__":
    sys.exit(main())
