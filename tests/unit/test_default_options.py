"""Options that a backend's configuration gives to the TrainJobs without them."""

from __future__ import annotations

import pytest

from trainer_core import (
    CustomTrainer,
    CustomTrainerContainer,
    DebugBackendConfig,
    LocalProcessBackendConfig,
    MoreMemory,
    Name,
    Owner,
    RestartPolicy,
    Reuse,
    Stalled,
    StartWithin,
    TrainerClient,
)
from trainer_core.backends import backend_class
from trainer_core.backends.runai.options import RunaiSpec
from trainer_core.client import default_options
from trainer_core.definition.request_builder import build_request
from trainer_core.model.request import DEFAULT_OPTIONS, TrainJobRequest

ALL = [Stalled("30m"), RestartPolicy(max_restarts=5), MoreMemory("32Gi"), StartWithin("6h"), Reuse("30d")]
FUNCTION = CustomTrainer("train:main", resources_per_node={"memory": "8Gi"})


@pytest.fixture
def connect(tmp_path):
    def connect(options):
        return TrainerClient(LocalProcessBackendConfig(home=tmp_path, default_options=options))

    return connect


def apply_all(trainer=FUNCTION, backend="kubernetes", options=(), **changes):
    """Return the names of the fields that the default options set in a request."""
    assert {type(option).__name__ for option in ALL} == DEFAULT_OPTIONS.keys()
    names = [DEFAULT_OPTIONS[type(option).__name__] for option in ALL]
    fields = {
        name: build_request(backend=backend_class("kubernetes"), options=[option]).get_field(name)
        for option, name in zip(ALL, names, strict=True)
    }
    request = build_request(backend=backend_class(backend), trainer=trainer, options=[Name("job"), *options])
    request = request.with_fields(**changes)
    changed = default_options.apply(request, fields)
    assert changed.fingerprint() == request.fingerprint()
    assert TrainJobRequest.from_json(changed.to_json()).fingerprint() == request.fingerprint()
    return set(changed.context.defaults or ())


def test_a_function_has_all_default_options():
    assert apply_all() == {"stalled", "restart_policy", "more_memory", "start_within", "reuse"}


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        ({"trainer": None}, {"stalled", "restart_policy", "more_memory", "reuse"}),
        ({"trainer": CustomTrainerContainer("image", resources_per_node={"memory": "8Gi"})}, {"stalled"}),
        ({"trainer": CustomTrainer("train:main")}, {"more_memory"}),
        ({"trainer": CustomTrainer("train:main", resources_per_node={"memory": "33Gi"})}, {"more_memory"}),
        ({"backend": "runai", "options": [RunaiSpec(memory="8Gi")]}, {"more_memory"}),
        ({"literal_secrets": {"dataset.ACCESS_TOKEN": "hf_1"}}, {"restart_policy"}),
    ],
)
def test_a_request_that_an_option_does_not_fit_has_no_default(arguments, left_out):
    assert apply_all(**arguments) == {"stalled", "restart_policy", "more_memory", "start_within", "reuse"} - left_out


def test_an_option_of_the_request_is_kept_and_is_part_of_its_fingerprint():
    assert apply_all(options=[Stalled("1h"), StartWithin("1h")]) == {"restart_policy", "more_memory", "reuse"}


def test_a_stored_request_keeps_the_defaults_of_its_creation(connect):
    request = build_request(backend=backend_class("local"), trainer=FUNCTION, options=[Name("job")])
    stored = default_options.apply(request, connect([Stalled("30m")])._default_options)
    again = default_options.apply(stored, connect([Stalled("40m"), StartWithin("1h")])._default_options)
    assert (again.policy.stalled.after, again.policy.start_within, again.context.defaults) == (
        1800,
        3600,
        ("stalled", "start_within"),
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("Stalled", "default_options: must be a list of options"),
        ([{"Stalled": {"after": "soon"}}], "default_options: Stalled after: must be a number of seconds"),
        (["Stalled"], "default_options: Stalled needs after"),
        ([{"Labels": {"a": "b"}}], "default_options: Labels is not one of StartWithin, MoreMemory, RestartPolicy"),
        ([7], "default_options: 7 is not one of"),
        (["RestartPolicy", RestartPolicy()], "default_options: RestartPolicy is given twice"),
        ([MoreMemory("8Gi")], "default_options: MoreMemory option is not compatible with LocalProcessBackend"),
        ("[", "default_options: while parsing"),
    ],
)
def test_an_invalid_default_is_refused_when_the_client_is_created(connect, options, problem):
    with pytest.raises(ValueError, match=problem):
        connect(options)


def test_the_environment_has_the_defaults_of_a_configuration_without_them(connect, monkeypatch):
    monkeypatch.setenv("TRAINJOB_DEFAULT_OPTIONS", "[{MoreMemory: {limit: 8Gi}}, {StartWithin: 1h}]")
    assert connect(None)._default_options == {"start_within": 3600}  # MoreMemory is for other backends.
    assert connect([])._default_options == {}
    assert TrainerClient(DebugBackendConfig())._default_options == {}
    monkeypatch.setenv("TRAINJOB_DEFAULT_OPTIONS", "[{StartWithin: soon}]")
    with pytest.raises(ValueError, match=r"^TRAINJOB_DEFAULT_OPTIONS: StartWithin limit"):
        connect(None)


def train() -> int:
    return 7


def test_a_default_of_reuse_finds_the_earlier_training_of_another_owner(connect):
    client = connect([Reuse("30d")])
    trainer = CustomTrainer(train)
    requests = [
        client.build_request(runtime="python", trainer=trainer, owner=Owner(key=key)) for key in ("first", "second")
    ]
    first = client.wait(client.submit(requests[0]))
    second = client.wait(client.submit(requests[1]))
    assert (first.reused_from, second.reused_from, second.result) == (None, first.job.name, 7)
