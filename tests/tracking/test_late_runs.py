"""The run of a job that was created while the server of MLflow was away, or whose submitter was killed."""

from __future__ import annotations

import pytest

from trainer_core import CustomTrainer, DebugBackendConfig, Name, TrainerClient
from trainer_core.base.errors import TrackingError
from trainer_core.model.jobs import Observation, Outcome, TrainJobRef
from trainer_core.model.request import TrackingRequest
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MlflowRun
from trainer_core.tracking.run import create_late_run, find_outcome


def fit():
    return {"accuracy": 0.9}


REF = TrainJobRef("debug", "here", "job", "uid-1")


class Api:
    """An MLflow server with the runs of one experiment.

    Attributes:
        other: Id of the run that another process creates at the same time.
        is_slow: Whether its search does not find new runs yet.
    """

    def __init__(self, other=None, is_slow=False):
        self.runs, self.deleted, self.other, self.is_slow = {}, {}, other, is_slow

    def get_experiment_id(self, name):
        return "7"

    def create_run(self, experiment, name, fields, started):
        self.runs["m"] = dict(fields)
        if self.other:
            self.runs[self.other] = dict(fields)
        return "m"

    def search_runs(self, experiments, condition, view="ACTIVE_ONLY"):
        assert experiments == ["7"]
        stages = {"active": self.runs, **({"deleted": self.deleted} if view == "ALL" else {})}
        return [
            MlflowRun.model_validate(
                {
                    "info": {"run_id": name, "experiment_id": "7", "status": "RUNNING", "lifecycle_stage": stage},
                    "data": {"tags": [{"key": key, "value": value} for key, value in fields.items()], "metrics": []},
                }
            )
            for stage, runs in stages.items()
            for name, fields in runs.items()
            if not self.is_slow
        ]

    def delete_run(self, name):
        self.deleted[name] = self.runs.pop(name)

    def log_batch(self, run_id, params=None, tags=None):
        self.runs[run_id] |= tags or {}
        return {}


@pytest.fixture
def create():
    client = TrainerClient(DebugBackendConfig())
    request = client.build_request(runtime="python", trainer=CustomTrainer(fit), options=[Name("job")])
    return lambda api: create_late_run(api, client.backend, request, REF)


def test_a_late_run_is_created_once(create):
    api = Api()
    assert (create(api), create(api), list(api.runs)) == ("m", "m", ["m"])
    assert api.runs["m"][tags.UID] == "uid-1"


@pytest.mark.parametrize(("other", "kept"), [("a", ["a"]), ("z", ["m", "z"])])
def test_of_two_processes_that_create_a_run_at_once_both_take_the_first_and_each_deletes_its_own(create, other, kept):
    api = Api(other)
    assert create(api) == kept[0]
    assert sorted(api.runs) == kept


def test_the_run_of_another_job_of_the_same_work_is_not_taken(create):
    api = Api()
    create(api)
    api.runs["a"] = {**api.runs.pop("m"), tags.UID: "uid-0"}
    assert create(api) == "m"


def test_a_run_that_a_person_deleted_is_not_brought_back(create):
    api = Api()
    api.delete_run(create(api))
    with pytest.raises(TrackingError, match="run m was deleted; it is left alone"):
        create(api)
    assert api.runs == {}


def test_a_new_run_that_is_not_found_yet_is_looked_for_again_later(create):
    with pytest.raises(TrackingError, match="not found yet") as caught:
        create(Api(is_slow=True))
    assert caught.value.transient


class Backend:
    """A backend with one job that has ended, and which has a run."""

    name = "debug"

    def __init__(self, run_id):
        client = TrainerClient(DebugBackendConfig())
        request = client.build_request(runtime="python", trainer=CustomTrainer(fit), options=[Name("job")])
        self.request = request.with_fields(tracking=TrackingRequest(run_id=run_id, experiment_id="7"))
        self.outcome = Outcome(ref=REF.to_dict(), status="Complete")

    def get_ref(self, name):
        assert name == "job"
        return REF

    def get_request(self, ref):
        return self.request

    def get_place(self, ref):
        return "here"

    def observe(self, ref):
        assert ref.uid == REF.uid
        return Observation("Complete", outcome=self.outcome)


@pytest.mark.parametrize(("run_id", "is_own"), [("m", True), ("other", False)])
def test_the_run_of_a_killed_submit_is_bound_to_its_job_before_its_outcome_is_reported(run_id, is_own):
    backend, api = Backend(run_id), Api()
    api.runs["m"] = {tags.NAME: "job", tags.BACKEND: "debug"}
    (run,) = api.search_runs(["7"], "")

    assert find_outcome(api, backend, run) == (backend.outcome if is_own else None)
    assert api.runs["m"].get(tags.UID) == ("uid-1" if is_own else None)
