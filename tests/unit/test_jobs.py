"""TrainJob, Step and Event: the fields of the reference, and JSON both ways."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.jobs import Event, Step, TrainJob
from trainer_core.observation import Progress
from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

CREATED = datetime(2026, 5, 1, 12, 30, 15, 250000, tzinfo=timezone.utc)
RUNTIME = Runtime("torch", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "torch", "", command=("torchrun",)))
STEP = Step("node-0", "Failed", "pod-0", "gpu", "2", exit_code=-9, restarts=1, node="m1", started=CREATED)
JOB = TrainJob(
    name="a-job",
    runtime=RUNTIME,
    steps=[STEP],
    num_nodes=2,
    creation_timestamp=CREATED,
    status="Failed",
    uid="u",
    namespace="team-a",
    labels={"a": "1"},
    annotations={"b": "2"},
    reason="it was killed",
    finished=CREATED,
    progress=Progress(3, 10, {"loss": 0.5}),
)
EVENT = Event("TrainJob", "a-job", "it started", "Started", CREATED, type="Warning")

texts = st.text(max_size=20)
times = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(timezone.utc))  # noqa: DTZ001
steps = st.builds(
    Step, texts, st.none() | texts, texts, exit_code=st.none() | st.integers(-64, 255), started=st.none() | times
)
jobs = st.builds(
    TrainJob,
    name=texts,
    runtime=st.builds(Runtime, texts, st.just(RUNTIME.trainer), st.sampled_from(RuntimeKind)),
    steps=st.lists(steps, max_size=3),
    num_nodes=st.integers(1, 100),
    creation_timestamp=times,
    labels=st.dictionaries(texts, texts, max_size=3),
    reason=st.none() | texts,
)


@pytest.mark.parametrize("record", [JOB, STEP, EVENT], ids=lambda record: type(record).__name__)
def test_a_record_survives_json(record):
    assert type(record).from_json(record.to_json()) == record


@given(jobs)
def test_any_job_survives_json(job):
    assert TrainJob.from_json(job.to_json()) == job


def test_a_job_is_plain_data_with_a_version():
    data = JOB.to_dict()
    assert (data["version"], data["status"], data["runtime"]["kind"]) == (1, "Failed", "ClusterTrainingRuntime")
    assert (data["creation_timestamp"], data["steps"][0]["exit_code"]) == ("2026-05-01T12:30:15.250000Z", -9)
    assert data["progress"] == {"step": 3, "total": 10, "metrics": {"loss": 0.5}}


def test_fields_of_the_reference_come_first_and_in_its_order():
    assert TrainJob("a-job", RUNTIME, [], 1, CREATED) == TrainJob(
        name="a-job", runtime=RUNTIME, steps=[], num_nodes=1, creation_timestamp=CREATED, status="Unknown"
    )
    assert Step("node-0", None, "pod-0", "cpu", "4").device_count == "4"
    assert Event("Pod", "pod-0", "message", "Reason", CREATED).event_time == CREATED


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        "a-job",
        {**JOB.to_dict(), "version": 2},
        {**JOB.to_dict(), "colour": "red"},
        {**JOB.to_dict(), "num_nodes": "many"},
        {"version": 1, "name": "a-job"},
    ],
)
def test_what_is_no_job_is_refused_in_one_line(data):
    with pytest.raises(ValueError, match=r"^not a TrainJob.*$") as refused:
        TrainJob.from_dict(data)
    assert "\n" not in str(refused.value)


def test_what_is_no_json_is_refused():
    with pytest.raises(ValueError, match=r"not a Step: '{' is not JSON"):
        Step.from_json("{")
