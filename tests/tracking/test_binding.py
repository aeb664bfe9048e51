"""Which runs of the same work the completion of a run deletes, ends, or leaves alone."""

from __future__ import annotations

import pytest

from trainer_core.base.errors import BackendUnavailableError, JobNotFoundError, TrackingError
from trainer_core.model.jobs import Observation, Outcome, TrainJobRef
from trainer_core.model.request import TrainJobRequest
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MlflowRun
from trainer_core.tracking.run import _find_unbound_job, bind_run

PLACE = "this host"
REF = TrainJobRef("local", "/home", "job", "uid-1")
#: Tags of a run whose submitter was killed before it bound the run.
UNBOUND = {tags.NAME: "job", tags.BACKEND: "local", tags.PLACE: PLACE, tags.ATTEMPT: "0"}
BOUND = {**UNBOUND, tags.UID: "uid-0", tags.NAMESPACE: "/home"}


class Api:
    """An MLflow server with the runs of one experiment.

    Attributes:
        changes: What was done to the runs: name of the request, and id of the run.
        bound: The tags with which a run was bound.
    """

    def __init__(self, **runs):
        self.runs = {name: build_run(name, **fields) for name, fields in runs.items()}
        self.changes, self.bound = [], {}

    def search_runs(self, experiments, condition):
        return [run for run in self.runs.values() if run.info.lifecycle_stage == "active"]

    def get_run(self, run_id):
        return self.runs[run_id]

    def delete_run(self, run_id):
        self.changes.append(("delete", run_id))

    def log_batch(self, run_id, metrics=(), params=None, tags=None):
        if params is not None:
            self.changes.append(("bind", run_id))
            self.bound[run_id] = tags
        return {}


def build_run(run_id, status="RUNNING", stage="active", **tags):
    info = {"run_id": run_id, "experiment_id": "7", "status": status, "lifecycle_stage": stage}
    data = {
        "tags": [{"key": key, "value": value} for key, value in tags.items() if value is not None],
    }
    return MlflowRun.model_validate({"info": info, "data": data})


class Backend:
    """A backend with one job, and without the jobs of other uids.

    Attributes:
        run: The run that the job's request names.
    """

    name = "local"

    def __init__(self, ref=REF, place=PLACE, run="own", error=None):
        self.ref, self.place, self.run, self.error = ref, place, run, error

    def get_place(self, ref):
        return self.place

    def get_ref(self, name):
        if self.ref is None or name != self.ref.name:
            raise JobNotFoundError(name)
        return self.ref

    def get_request(self, ref):
        if self.error is not None:
            raise self.error
        return build_request(self.run)

    def observe(self, ref):
        raise JobNotFoundError(ref.name)


def build_request(run="own"):
    tracking = {"uri": "http://mlflow.example", "run_id": run, "experiment_id": "7"}
    trainer = {"kind": "container", "image": "x"}
    return TrainJobRequest.parse({"name": "job", "trainer": trainer, "tracking": tracking})


def bind(api, backend=None, run="own"):
    """Bind the run of the job, and return what was done, and which earlier runs are to be ended and how."""
    ended = bind_run(api, backend or Backend(), REF, build_request(run))
    return api.changes + [(tags.get_run_status(outcome), run.id) for run, outcome in ended]


def test_a_run_is_bound_once_to_its_job():
    api = Api(own=UNBOUND)

    assert bind(api) == [("bind", "own")]
    assert api.bound["own"] == {
        tags.UID: "uid-1",
        tags.NAME: "job",
        tags.NAMESPACE: "/home",
        tags.BACKEND: "local",
        tags.PLACE: PLACE,
    }
    assert bind(Api(own=BOUND)) == []


def test_a_job_without_a_run_changes_no_run():
    assert bind(Api(other=UNBOUND), run=None) == []


def test_a_run_that_a_person_deleted_is_left_alone():
    api = Api(own={**UNBOUND, "stage": "deleted"}, orphan=UNBOUND)
    with pytest.raises(TrackingError, match="run own was deleted; it is left alone"):
        bind(api)

    assert api.changes == []


@pytest.mark.parametrize("own", [UNBOUND, BOUND])
def test_the_run_of_a_submitter_that_lost_the_race_is_deleted(own):
    assert ("delete", "orphan") in bind(Api(own=own, orphan=UNBOUND))


@pytest.mark.parametrize(
    ("run", "backend"),
    [
        ({"status": "FINISHED"}, {}),
        ({tags.NAME: "another"}, {}),
        ({tags.BACKEND: "container"}, {}),
        ({tags.PLACE: "another host"}, {}),
        # Where jobs live is not known here.
        ({tags.PLACE: None}, {"place": None}),
        # The job was deleted meanwhile: another submit may be about to use the run.
        ({}, {"ref": None}),
        ({}, {"ref": TrainJobRef("local", "/home", "job", "uid-2")}),
    ],
)
def test_a_run_that_another_submit_may_use_is_left_alone(run, backend):
    assert bind(Api(own=BOUND, other={**UNBOUND, **run}), Backend(**backend)) == []


@pytest.mark.parametrize(
    "run",
    [{}, {"status": "FAILED", tags.PENDING: "FAILED"}, {"status": "FINISHED", tags.REPORTED: ""}],
    ids=["not ended", "not complete", "ended by mlflow in the training"],
)
def test_the_run_of_an_earlier_job_that_is_gone_is_ended_unless_its_report_is_complete(run):
    assert bind(Api(own={**BOUND, tags.UID: "uid-1"}, earlier={**BOUND, **run})) == [("KILLED", "earlier")]


class BackendWithEarlierJob(Backend):
    """A backend with a complete job of the same work, whose submitter was killed before it bound the run."""

    earlier = TrainJobRef("local", "/home", "earlier-job", "uid-0")

    def get_ref(self, name):
        return self.earlier if name == self.earlier.name else super().get_ref(name)

    def get_request(self, ref):
        return build_request("earlier")

    def observe(self, ref):
        return Observation("Complete", outcome=Outcome(ref=ref.to_dict(), status="Complete", metrics={"accuracy": 0.9}))


def test_the_run_of_an_earlier_job_whose_submitter_was_killed_is_bound_and_ended():
    earlier = {**UNBOUND, tags.NAME: "earlier-job"}
    api = Api(own={**BOUND, tags.UID: "uid-1"}, earlier=earlier)

    assert bind(api, BackendWithEarlierJob()) == [("bind", "earlier"), ("FINISHED", "earlier")]
    assert api.bound["earlier"][tags.UID] == "uid-0"


@pytest.mark.parametrize(
    ("run", "place"),
    [
        ({"status": "FINISHED"}, PLACE),
        ({"status": "FINISHED", tags.REPORTED: "uid-0"}, PLACE),
        ({tags.BACKEND: "container"}, PLACE),
        ({tags.PLACE: "another host"}, PLACE),
        # Created by a release that recorded no place.
        ({tags.PLACE: None}, PLACE),
        ({tags.PLACE: None}, None),
    ],
)
def test_the_run_of_an_earlier_job_that_ended_or_is_not_visible_here_is_left_alone(run, place):
    api = Api(own=BOUND, earlier={**BOUND, **run})

    assert bind(api, Backend(place=place)) == []


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({tags.ATTEMPT: "1"}, "first"),
        ({tags.ATTEMPT: "1", tags.PARENT: "of a person"}, None),
        # The first attempt after an earlier one whose job was deleted.
        ({tags.ATTEMPT: "0"}, None),
    ],
)
def test_the_run_of_a_later_attempt_is_nested_under_that_of_the_first(own, expected):
    api = Api(first={**BOUND, "status": "FAILED"}, own={**UNBOUND, **own})
    bind(api)

    assert api.bound["own"].get(tags.PARENT) == expected


def test_a_later_attempt_whose_first_run_was_deleted_has_no_parent():
    api = Api(own={**UNBOUND, tags.ATTEMPT: "1"})
    bind(api)

    assert tags.PARENT not in api.bound["own"]


def test_the_job_of_an_unbound_run_is_the_one_whose_request_names_the_run():
    run = build_run("own", **UNBOUND)
    ref, request = _find_unbound_job(Backend(), run)

    assert (ref, request.policy.tracking.run_id) == (REF, "own")
    assert _find_unbound_job(Backend(run="another"), run) is None
    assert _find_unbound_job(Backend(ref=None), run) is None
    assert _find_unbound_job(Backend(error=BackendUnavailableError("away")), run) is None
    assert _find_unbound_job(Backend(), build_run("own")) is None
