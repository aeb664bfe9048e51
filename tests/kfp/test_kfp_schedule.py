"""pipelines/schedule.py: a recurring run is replaced by its name."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kfp.client import Client
from kfp_driver import REPOSITORY

sys.path.append(str(REPOSITORY / "pipelines"))

from schedule import ScheduleError, schedule

PIPELINE = REPOSITORY / "pipelines" / "retrain_scheduled.yaml"
NIGHTLY = "0 0 3 * * *"


class Server:
    """What KFP's server keeps of recurring runs, behind methods of its client; it pages like it."""

    def __init__(self, *names, refuses=False, keeps=()):
        self.refuses, self.kept = refuses, keeps
        self.runs = {f"id-{number}": {"job_name": name} for number, name in enumerate(names)}

    def create_experiment(self, name, namespace=None):
        return SimpleNamespace(experiment_id=f"experiment {name}")

    def list_recurring_runs(self, page_token="", page_size=10, experiment_id=None, namespace=None):
        known = [SimpleNamespace(recurring_run_id=key, display_name=run["job_name"]) for key, run in self.runs.items()]
        start = int(page_token or 0)
        after = start + 1
        return SimpleNamespace(
            recurring_runs=known[start:after] or None, next_page_token=str(after) if after < len(known) else None
        )

    def delete_recurring_run(self, recurring_run_id):
        if recurring_run_id in self.kept:
            raise ConnectionError("connection reset")
        del self.runs[recurring_run_id]

    def create_recurring_run(self, **given):
        inspect.signature(Client.create_recurring_run).bind(None, **given)
        if self.refuses:
            raise ValueError("invalid pipeline parameter")
        self.runs["new"] = given
        return SimpleNamespace(recurring_run_id="new")


def test_runs_do_not_overlap_and_missed_runs_are_skipped():
    server = Server()

    schedule(server, PIPELINE, "retrain", NIGHTLY, {"dataset_uri": "s3://data"})

    made = server.runs["new"]
    assert (made["max_concurrency"], made["no_catchup"], made["cron_expression"]) == (1, True, NIGHTLY)
    assert made["params"] == {"dataset_uri": "s3://data"}


def test_the_one_of_the_same_name_is_replaced_and_others_stay():
    server = Server("another", "retrain", "retrain")

    schedule(server, PIPELINE, "retrain", NIGHTLY, {})

    assert [run["job_name"] for run in server.runs.values()] == ["another", "retrain"]


def test_a_recurring_run_that_kfp_refuses_leaves_the_old_one():
    server = Server("retrain", refuses=True)

    with pytest.raises(ValueError, match="invalid pipeline parameter"):
        schedule(server, PIPELINE, "retrain", NIGHTLY, {})
    assert [run["job_name"] for run in server.runs.values()] == ["retrain"]


def test_an_old_recurring_run_that_kfp_does_not_delete_is_named_and_the_others_are_deleted():
    server = Server("retrain", "retrain", keeps=["id-0"])

    with pytest.raises(ScheduleError, match=r"did not delete id-0 \(connection reset\): both run now"):
        schedule(server, PIPELINE, "retrain", NIGHTLY, {})
    assert list(server.runs) == ["id-0", "new"]


@pytest.mark.parametrize("cron", ["0 3 * * *", "", "@daily"])
def test_a_schedule_without_six_fields_is_refused_and_the_old_one_stays(cron):
    server = Server("retrain")

    with pytest.raises(ValueError, match="must have six fields, seconds first"):
        schedule(server, PIPELINE, "retrain", cron, {})
    assert len(server.runs) == 1


def test_the_command_explains_itself():
    command = [sys.executable, str(Path(REPOSITORY, "pipelines", "schedule.py")), "--help"]

    assert "seconds first" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
