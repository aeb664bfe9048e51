"""One definition for several backends: `OnBackend`, and request data that are built before the backend is known."""

from __future__ import annotations

import json
import logging
from unittest.mock import Mock

import pytest

from trainer_core.base.errors import InvalidRequestError
from trainer_core.client import backend_for
from trainer_core.definition import request_builder
from trainer_core.definition.options import (
    ActiveDeadlineSeconds,
    Labels,
    OnBackend,
    QueueName,
    RuntimePatch,
    Suspend,
    TrainerArgs,
    TrainingRuntimeSpecPatch,
)
from trainer_core.definition.request_builder import build_request_data, parse_options, select_backend
from trainer_core.definition.trainers import CustomTrainer, CustomTrainerContainer
from trainer_core.model.backend_names import OWN_BACKENDS
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

KUBERNETES = backend_for("kubernetes")
RUNTIME = Runtime(
    "team", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "torch", "train:1"), kind=RuntimeKind.TRAINING_RUNTIME
)


def train(epochs: int = 1):
    return epochs


PORTABLE = [
    Labels({"team": "vision", "place": "any"}),
    OnBackend(
        "kubernetes",
        QueueName("nightly"),
        RuntimePatch(TrainingRuntimeSpecPatch()),
        Labels({"place": "cluster"}),
        image="ghcr.io/team/train:1",
        runtime=RUNTIME,
        resources_per_node={"gpu": 1},
        packages_to_install=[],
    ),
    OnBackend("local", ActiveDeadlineSeconds(60), runtime="python", packages_to_install=["scikit-learn"]),
    OnBackend("local", Suspend()),
    Labels({"team": "audio"}),
]
TRAINER = CustomTrainer(train, {"epochs": 3}, packages_to_install=["torch"], pip_index_urls=["https://pypi.org/simple"])


@pytest.mark.parametrize("backend", sorted(OWN_BACKENDS))
def test_data_built_before_the_backend_is_known_equal_those_built_for_it(backend):
    arguments = {"runtime": "torch-distributed", "trainer": TRAINER, "options": PORTABLE}
    late = json.loads(json.dumps(build_request_data(backend=None, **arguments)))
    expected = build_request_data(backend=backend_for(backend), **arguments)
    assert select_backend(late, backend_for(backend)) == expected
    assert TrainJobRequest.parse(expected).fingerprint()


def test_what_an_option_sets_for_one_backend_is_set_on_that_backend_only():
    late = build_request_data(backend=None, runtime="torch-distributed", trainer=TRAINER, options=PORTABLE)
    cluster = select_backend(late, KUBERNETES)
    here = select_backend(late, backend_for("local"))
    elsewhere = select_backend(late, backend_for("container"))
    assert cluster["metadata"]["labels"] == {
        "team": "audio",
        "place": "cluster",
        "kueue.x-k8s.io/queue-name": "nightly",
    }
    assert cluster["runtime"] == {"name": "team", "kind": "TrainingRuntime"}
    assert cluster["trainer"]["image"] == "ghcr.io/team/train:1"
    assert "packages" not in cluster["trainer"]
    assert (here["runtime"], here["trainer"]["packages"]) == ({"name": "python"}, ["scikit-learn"])
    assert (here["active_deadline_seconds"], here["suspend"]) == (60, True)
    assert here["trainer"]["pip_index_urls"] == ["https://pypi.org/simple"]
    assert elsewhere["metadata"]["labels"] == {"team": "audio", "place": "any"}
    assert (elsewhere["runtime"], elsewhere["trainer"]["packages"]) == ({"name": "torch-distributed"}, ["torch"])


def test_an_option_outside_of_on_backend_is_refused_by_name_once_the_backend_is_known():
    late = build_request_data(backend=None, options=[QueueName("nightly")])
    with pytest.raises(ValueError, match=r"^QueueName option is not compatible with LocalProcessBackend\. ") as now:
        build_request_data(backend=backend_for("local"), options=[QueueName("nightly")])
    with pytest.raises(ValueError, match="QueueName") as later:
        select_backend(late, backend_for("local"))
    assert str(later.value) == str(now.value)
    assert select_backend(late, KUBERNETES) == build_request_data(backend=KUBERNETES, options=[QueueName("nightly")])


def test_an_option_that_its_own_backend_refuses_is_refused_before_the_backend_is_known():
    with pytest.raises(ValueError, match="RuntimePatch option is not compatible with LocalProcessBackend"):
        build_request_data(backend=None, options=[OnBackend("local", RuntimePatch())])


def test_request_data_cannot_be_submitted_before_a_backend_is_selected():
    with pytest.raises(InvalidRequestError, match="options"):
        TrainJobRequest.parse(build_request_data(backend=None, options=[QueueName("nightly")]))


def test_a_definition_without_options_is_the_same_whether_or_not_the_backend_is_known():
    assert build_request_data(backend=None, trainer=TRAINER) == build_request_data(backend=KUBERNETES, trainer=TRAINER)


@pytest.mark.parametrize("known", [True, False])
def test_a_skipped_option_is_named_in_one_line_of_the_log(caplog, known):
    caplog.set_level(logging.INFO, logger="trainer_core.definition.options")
    options = [OnBackend("kubernetes", QueueName("nightly"))]
    backend = backend_for("local")
    select_backend(build_request_data(backend=backend if known else None, options=options), backend)
    (line,) = caplog.messages
    assert line == "OnBackend('kubernetes') is skipped: the job is for the local backend"


def test_on_backend_as_plain_data_gives_the_same_option():
    data = {
        "OnBackend": {
            "backend": "kubernetes",
            "options": [{"QueueName": "nightly"}, "Suspend"],
            "image": "ghcr.io/team/train:1",
            "resources_per_node": {"gpu": 1},
        }
    }
    option = OnBackend(
        "kubernetes",
        QueueName("nightly"),
        Suspend(),
        image="ghcr.io/team/train:1",
        resources_per_node={"gpu": 1},
    )
    assert parse_options([data]) == [option]


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: OnBackend("kubernets", QueueName("a")), "unknown backend 'kubernets'; known are container"),
        (lambda: OnBackend("local", OnBackend("local")), r"OnBackend\('local'\) contains another OnBackend"),
        (lambda: OnBackend("local", {"QueueName": "a"}), r"takes options such as QueueName\('nightly'\), got"),
        (lambda: OnBackend("local", image=""), "OnBackend image"),
        (lambda: OnBackend("local", packages_to_install="torch"), "OnBackend packages_to_install"),
        (lambda: OnBackend("local", resources_per_node={"cpu": "many"}), "resource 'cpu': 'many' is not a quantity"),
        (lambda: parse_options([{"OnBackend": "kubernetes"}]), "option OnBackend takes a dict such as"),
        (
            lambda: parse_options([{"OnBackend": {"backend": "local", "imge": "a"}}]),
            "unknown field imge of OnBackend; known are backend, options, image, runtime",
        ),
        (
            lambda: build_request_data(backend=None, options=[OnBackend("kubernetes", image="a")]),
            r"OnBackend\('kubernetes'\) image: the job has no trainer; give one",
        ),
        (
            lambda: build_request_data(
                backend=None,
                trainer=CustomTrainerContainer("a"),
                options=[OnBackend("kubernetes", packages_to_install=["torch"])],
            ),
            "packages_to_install needs a training function",
        ),
        (lambda: select_backend({"options": "QueueName"}, KUBERNETES), "options of a request must be a list"),
        (lambda: select_backend({"on_backend": ["a"]}, KUBERNETES), "on_backend of a request must be a dict"),
        (lambda: select_backend({"on_backend": {"a": {}}}, KUBERNETES), "on_backend has the unknown backend 'a'"),
    ],
)
def test_an_invalid_definition_is_refused_in_one_line(create, message):
    with pytest.raises(ValueError, match=message) as caught:
        create()
    assert "\n" not in str(caught.value)


def test_a_subclass_of_an_option_is_accepted_where_the_option_is():
    class TeamQueue(QueueName):
        pass

    late = build_request_data(backend=None, options=[TeamQueue("nightly")])
    assert late["options"] == ["QueueName"]
    assert select_backend(late, KUBERNETES)["metadata"]


def test_the_command_of_an_image_can_be_for_one_backend():
    late = build_request_data(
        backend=None,
        trainer=CustomTrainerContainer("train:1"),
        options=[OnBackend("kubernetes", TrainerArgs(["--cluster"]))],
    )
    assert select_backend(late, KUBERNETES)["trainer"]["args"] == ["--cluster"]
    assert "args" not in select_backend(late, backend_for("container"))["trainer"]


def test_a_mock_of_a_backend_accepts_what_its_class_accepts():
    backend = Mock(spec=KUBERNETES)
    data = request_builder.build_request_data(backend=backend, options=[QueueName("nightly"), *PORTABLE[:1]])
    assert data["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "nightly"
