"""How much memory each attempt asks for, with the option MoreMemory."""

from __future__ import annotations

import json

import pytest

from trainer_core import InvalidRequestError
from trainer_core.backends.container.plan import render_plan
from trainer_core.backends.container.runtimes import RuntimeCatalog
from trainer_core.lifecycle.attempt_memory import apply_attempt_memory, build_next_request, get_attempt_memory
from trainer_core.model.config import ContainerBackendConfig
from trainer_core.model.jobs import AttemptMemory, Category, Diagnosis, Outcome
from trainer_core.model.request import TrainJobRequest


def ask(memory="8Gi", limit="32Gi", factor=1.5, **fields):
    """Return a request of an image with the option, and memory in resources_per_node."""
    trainer = {"kind": "container", "image": "train:1", "resources_per_node": {"cpu": 2, "memory": memory}}
    policy = {"limit": limit, "factor": factor}
    return TrainJobRequest.parse({"name": "job", "trainer": trainer, "more_memory": policy, **fields})


def end(request, category=Category.OUT_OF_MEMORY, retryable=True):
    """Return the outcome of an attempt of a request that has failed."""
    diagnosis = Diagnosis(category=category, reason="it failed", retryable=retryable)
    return Outcome(ref={}, status="Failed", diagnosis=diagnosis, memory=get_attempt_memory(request))


def run_out_of_memory(request):
    """Return the amounts of the attempts until none is left, each after one that ran out of memory."""
    amounts = [get_attempt_memory(request).amount]
    attempt = request
    while get_attempt_memory(attempt).next is not None:
        attempt = build_next_request(request, end(attempt))
        amounts.append(get_attempt_memory(attempt).amount)
    return amounts


@pytest.mark.parametrize(
    ("memory", "limit", "factor", "amounts"),
    [
        ("8Gi", "32Gi", 1.5, ["8Gi", "12Gi", "18Gi", "27Gi", "32Gi"]),
        ("1Gi", "4Gi", 2, ["1Gi", "2Gi", "4Gi"]),
        ("8Gi", "8Gi", 1.5, ["8Gi"]),
        # Whole Mi, rounded up; the limit as it was written.
        (
            "1000Mi",
            "3G",
            1.1,
            [
                "1000Mi",
                "1100Mi",
                "1210Mi",
                "1331Mi",
                *["1465Mi", "1612Mi", "1774Mi", "1952Mi"],
                *["2148Mi", "2363Mi", "2600Mi", "2860Mi"],
                "3G",
            ],
        ),
        ("1Mi", "9Mi", 1.5, ["1Mi", "2Mi", "3Mi", "5Mi", "8Mi", "9Mi"]),
        ("2e9", "5e9", 2, ["2e9", "3815Mi", "5e9"]),
        (1073741824, "1.5Gi", 1.5, ["1073741824", "1.5Gi"]),
    ],
)
def test_each_attempt_that_ran_out_of_memory_is_followed_by_one_with_more_up_to_the_limit(
    memory, limit, factor, amounts
):
    assert run_out_of_memory(ask(memory, limit, factor)) == amounts


def test_all_attempts_have_the_fingerprint_of_the_request():
    request = ask()
    attempt = build_next_request(request, end(request))
    assert attempt.context.attempt_memory == "12Gi"
    assert attempt.fingerprint() == request.fingerprint()
    assert attempt.list_differences(request) == []
    assert TrainJobRequest.from_json(attempt.to_json()) == attempt


@pytest.mark.parametrize("category", [each for each in Category if each is not Category.OUT_OF_MEMORY])
def test_another_failure_leaves_the_amount_as_it_is(category):
    request = ask()
    second = build_next_request(request, end(request))
    assert build_next_request(request, end(second, category)).context.attempt_memory == "12Gi"


def test_the_memory_of_a_gpu_leaves_the_amount_as_it_is():
    request = ask()
    assert build_next_request(request, end(request, retryable=False)) == request


def test_the_first_attempt_of_a_generation_asks_for_the_memory_of_the_request():
    request = ask(attempt_memory="27Gi")
    assert build_next_request(request, None) == ask()


def test_an_attempt_follows_the_request_of_its_time():
    last = end(ask(attempt_memory="18Gi"))
    assert build_next_request(ask(memory="24Gi"), last).context.attempt_memory == "32Gi"
    assert build_next_request(ask(limit="20Gi"), last).context.attempt_memory == "20Gi"
    assert build_next_request(ask(limit="16Gi"), last).context.attempt_memory == "16Gi"


def test_an_attempt_before_which_the_request_had_no_option_asks_for_the_memory_of_the_request():
    last = Outcome(ref={}, status="Failed", diagnosis=end(ask()).diagnosis)
    assert build_next_request(ask(), last) == ask()


def test_a_request_without_the_option_has_no_memory_of_an_attempt():
    request = TrainJobRequest.parse({"name": "job", "trainer": {"kind": "container", "image": "train:1"}})
    assert get_attempt_memory(request) is None
    assert build_next_request(request, None) is request
    assert apply_attempt_memory(request) is request


def test_only_the_memory_of_resources_per_node_is_replaced():
    attempt = ask(attempt_memory="12Gi")
    applied = apply_attempt_memory(attempt)
    assert applied.work.trainer.resources_per_node == {"cpu": "2", "memory": "12Gi"}
    assert attempt.work.trainer.resources_per_node == {"cpu": "2", "memory": "8Gi"}


def test_requests_and_limits_of_a_distributed_config_are_replaced():
    fields = {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
    trainer = {"kind": "container", "image": "train:1", "resources_per_node": {"gpu": 1}}
    request = ask(trainer=trainer, distributed=fields)
    attempt = build_next_request(request, end(request))
    applied = apply_attempt_memory(attempt)
    assert get_attempt_memory(attempt) == AttemptMemory(amount="12Gi", asked="8Gi", next="18Gi")
    assert applied.work.distributed.requests == {"cpu": "1", "memory": "12Gi"}
    assert applied.work.distributed.limits == {"memory": "12Gi"}
    assert applied.work.trainer == attempt.work.trainer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainer": {"kind": "container", "image": "train:1"}}, "MoreMemory: the request names no memory"),
        ({"trainer": None, "initializer": {"model": {"storage_uri": "hf://a/b"}}}, "MoreMemory: the request names"),
        ({"memory": "33Gi"}, "MoreMemory: the limit of 32Gi is less than the 33Gi of resources_per_node; raise"),
        ({"limit": "0"}, "more_memory.limit: .*memory must be greater than 0"),
        ({"limit": "300m"}, "more_memory.limit: .*fraction of a byte"),
        ({"limit": None}, "more_memory.limit: .*not a quantity"),
        ({"factor": 1}, "more_memory.factor: "),
        ({"factor": "inf"}, "more_memory.factor: "),
        ({"attempt_memory": "much"}, "attempt_memory: .*not a quantity"),
    ],
)
def test_a_request_that_cannot_have_more_memory_is_refused_in_one_line(fields, message):
    with pytest.raises(InvalidRequestError, match=f"^{message}.*$"):
        get_attempt_memory(ask(**fields))


def test_the_nodes_of_an_attempt_in_containers_have_its_memory_and_no_swap():
    def render(request):
        return render_plan(request, RuntimeCatalog([]).get("python"), ContainerBackendConfig())

    plan = render(ask(runtime={"name": "python"}, attempt_memory="12Gi"))
    (node,) = plan["steps"]
    assert (node["memory"], node["memory_swap"]) == (12 * 2**30, 12 * 2**30)
    assert plan["memory"] == {"amount": "12Gi", "asked": "8Gi", "next": "18Gi"}
    without = render(ask(runtime={"name": "python"}).with_fields(more_memory=None))
    assert (without["steps"][0].get("memory_swap"), without.get("memory")) == (None, None)


def test_the_memory_of_an_attempt_survives_json_in_the_outcome():
    outcome = end(ask(attempt_memory="32Gi"))
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert json.loads(outcome.to_json())["memory"] == {"amount": "32Gi", "asked": "8Gi", "next": None}
    assert "memory" not in Outcome(ref={}, status="Complete").to_dict()


@pytest.mark.parametrize("data", [None, [], {}, {"amount": "12Gi"}, {"amount": "x", "asked": "8Gi"}, {"amount": 1}])
def test_a_damaged_record_of_the_memory_counts_as_none(data):
    assert AttemptMemory.parse(data) is None
