"""Which attempt follows when a person retries a TrainJob, and when its RestartPolicy starts it again."""

from __future__ import annotations

import pytest
from manual_backend import ManualBackend

from trainer_core import DebugBackendConfig, TrainerClient
from trainer_core.base.errors import InvalidRequestError
from trainer_core.client.runs import JobRuns
from trainer_core.lifecycle.next_attempt import restore_owned_request, split_name
from trainer_core.lifecycle.restart_policy import decide_outcome, get_attempt_restarts
from trainer_core.model.request import Owner, TrainJobRequest

OWNER = Owner(key="dag/run/task", slug="train", generation="0")


@pytest.fixture
def client():
    client = TrainerClient(DebugBackendConfig())
    client.backend = ManualBackend()
    client.runs = JobRuns(client.backend, None, client.get_job_request)
    return client


def ask(name="nightly", image="custom:1", **fields):
    trainer = {"kind": "container", "image": image}
    return TrainJobRequest.parse({"name": name, "trainer": trainer, "runtime": {"name": "python"}, **fields})


def fail(client, ref):
    """Let a job fail in a way that a retry can help; return its outcome, with the restart that follows."""
    job = client.backend.jobs[ref.name]
    client.backend.fail(ref.name, retryable=True)
    policy = get_attempt_restarts(job.request)
    if policy is not None:
        job.outcome = decide_outcome(job.outcome, policy, None)
    return job.outcome


def submit_failed(client, request):
    ref = client.submit(request)
    fail(client, ref)
    return ref


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nightly-2", ("nightly", 2)),
        ("nightly-9999", ("nightly", 9999)),
        ("nightly-10000", ("nightly-10000", 0)),
        ("nightly-0", ("nightly-0", 0)),
        ("nightly-02", ("nightly-02", 0)),
        ("nightly", ("nightly", 0)),
    ],
)
def test_the_name_of_a_later_attempt_is_that_of_the_first_and_a_number(name, expected):
    assert split_name(name) == expected


def test_a_retry_starts_the_attempt_after_the_last_one_and_returns_one_that_has_not_failed(client):
    first = submit_failed(client, ask())
    second = client.retry(first)
    assert (second.name, client.retry(first)) == ("nightly-1", second)
    fail(client, second)
    assert [client.retry(first).name, client.retry(second).name] == ["nightly-2", "nightly-2"]
    with pytest.raises(InvalidRequestError, match=r"^TrainJob 'nightly-2' is Running; only a failed one can be"):
        client.retry("nightly-2")


@pytest.mark.parametrize("others", [[], ["model"]], ids=["no other job", "other work"])
def test_a_name_that_ends_with_a_number_is_that_of_a_first_attempt_unless_its_first_attempt_exists(client, others):
    for other in others:
        client.submit(ask(other, "another:1"))
    assert client.retry(submit_failed(client, ask("model-2"))).name == "model-2-1"


def test_the_name_of_an_attempt_that_other_work_has_is_passed_over(client):
    client.submit(ask("nightly-1", "another:1"))
    assert client.retry(submit_failed(client, ask())).name == "nightly-2"


def test_attempts_share_the_checkpoints_of_the_first_and_each_has_a_run_in_its_tracker(client):
    tracking = {"kind": "wandb", "experiment": "sales", "run_id": "run-1", "experiment_id": "7"}
    first = submit_failed(client, ask(checkpoints={"uri": "s3://bucket/runs"}, tracking=tracking))
    second = client.retry(first)
    fail(client, second)
    requests = [client.get_job_request(job) for job in (first, second, client.retry(second))]
    assert requests[0].policy.checkpoints.nonce in requests[1].policy.checkpoints.scope
    assert requests[1].policy.checkpoints.scope == requests[2].policy.checkpoints.scope
    assert [request.policy.tracking.run_id for request in requests] == ["run-1", None, None]
    assert (requests[1].policy.tracking.experiment, requests[1].policy.tracking.experiment_id) == ("sales", None)


@pytest.mark.parametrize("name", [None, "mine"])
@pytest.mark.parametrize("policy", [None, {"max_restarts": 1}])
def test_the_next_attempt_of_an_owner_has_its_name(client, policy, name):
    ref = submit_failed(client, ask(name, owner=OWNER.model_dump(), restart_policy=policy))
    names = [ref.name]
    for _ in range(2):
        ref = client.retry(ref)
        names.append(ref.name)
        fail(client, ref)
    assert names[1:] == [f"{names[0]}-1", f"{names[0]}-2"]
    assert [client.get_job_request(name).context.owner for name in names] == [OWNER] * 3


@pytest.mark.parametrize(
    ("name", "attempt", "restored"),
    [("mine", 0, "mine"), ("mine-2", 2, "mine"), ("mine-2", 0, "mine-2"), ("train-4d5123ec30-1", 1, None)],
)
def test_a_stored_request_of_an_owner_has_the_name_that_was_submitted(name, attempt, restored):
    assert restore_owned_request(ask(name, owner=OWNER.model_dump()), name, attempt).context.name == restored


@pytest.mark.parametrize("fields", [{}, {"name": None, "owner": OWNER.model_dump()}], ids=["a name", "an owner"])
def test_a_policy_starts_a_job_again_until_its_budget_is_used_up_and_a_person_gives_a_new_one(client, fields):
    first = client.submit(ask(**fields, restart_policy={"max_restarts": 1, "delay": 0, "no_progress": 9}))
    outcome = fail(client, first)
    second = client.attempts(outcome.job).start_next(outcome)
    assert second.name == f"{first.name}-1"
    assert client.attempts(outcome.job).start_next(outcome) == second
    assert client.get_job_request(second).context.attempt_restarts.counted == 1
    assert client.attempts(second).start_next(fail(client, second)) is None
    third = client.retry(first)
    assert (third.name, client.get_job_request(third).context.attempt_restarts) == (f"{first.name}-2", None)
    assert fail(client, third).diagnosis.retryable


def test_a_process_without_the_tokens_of_a_training_does_not_start_it_again(client, caplog):
    tokens = {"model.ACCESS_TOKEN": "hf_1", "trainer.MLFLOW_TRACKING_TOKEN": "of the configuration"}
    request = ask(None, owner=OWNER.model_dump(), restart_policy={"delay": 0}, literal_secrets=tokens)
    first = client.submit(request)
    outcome = fail(client, first)
    assert client.attempts(outcome.job).start_next(outcome) is None
    assert "only what has submitted it can start it again: its model.ACCESS_TOKEN is not stored" in caplog.text
    assert "hf_1" not in caplog.text
    with pytest.raises(InvalidRequestError, match="only what has submitted it"):
        client.retry(first)
    second = client.submit(request)
    assert (second.name, client.get_job_request(second).context.attempt_restarts.counted) == (f"{first.name}-1", 1)


@pytest.mark.parametrize(("call", "owner"), [("get_request", None), ("get_request", OWNER), ("find_jobs", OWNER)])
def test_a_job_that_is_deleted_while_it_is_started_again_stays_deleted(client, call, owner):
    ref = client.submit(ask(None if owner else "nightly", owner=owner, restart_policy={"delay": 0}))
    outcome = fail(client, ref)
    client.backend.on_call = lambda name: client.backend.jobs.pop(ref.name, None) if name == call else None
    assert client.attempts(outcome.job).start_next(outcome) is None
    assert client.backend.jobs == {}
