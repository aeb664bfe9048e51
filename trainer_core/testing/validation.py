"""Validation: invalid requests are refused before anything is created, rendering is pure, and secrets stay secret."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import trainer_core
from trainer_core.base.errors import InvalidRequestError, JobNotFoundError, RuntimeNotFoundError, TrainerError
from trainer_core.base.secrets import SecretRef
from trainer_core.client import TrainerClient
from trainer_core.definition import request_builder
from trainer_core.definition.initializers import FileDatasetInitializer, HuggingFaceDatasetInitializer, Initializer
from trainer_core.definition.options import (
    ActiveDeadlineSeconds,
    Annotations,
    Checkpoints,
    DeleteAfter,
    GangScheduling,
    Labels,
    ManagedBy,
    MoreMemory,
    Name,
    Partition,
    PriorityClass,
    QueueName,
    RestartPolicy,
    Reuse,
    RuntimePatch,
    Stalled,
    StartWithin,
    Suspend,
    Tracking,
    TrainerArgs,
    TrainerCommand,
    TrainingRuntimeSpecPatch,
    Workspace,
)
from trainer_core.definition.options.distributed_config import DistributedConfig
from trainer_core.definition.trainers import CustomTrainer, CustomTrainerContainer
from trainer_core.model.option import BaseOption
from trainer_core.model.request import TrainJobRequest
from trainer_core.testing.case import BackendCase, BuildRequest, Contract, applies_to
from trainer_core.testing.training_functions import return_value

_SECRET = "hf_a-secret-token"  # noqa: S105 -- a fake token for the test of leaks


def _create_options_of_backends() -> list[BaseOption]:
    """Return one option of each class that only one backend has, which lies in the folder of that backend."""
    public = [getattr(trainer_core, name) for name in dir(trainer_core)]
    own = [each for each in public if getattr(each, "__module__", "").startswith("trainer_core.backends.")]
    return [kind() for kind in own if isinstance(kind, type) and issubclass(kind, BaseOption)]


#: One option of each class.
ALL_OPTIONS: list[Any] = [
    *_create_options_of_backends(),
    Name("job"),
    Labels({"a": "b"}),
    Annotations({"a": "b"}),
    Suspend(),
    ActiveDeadlineSeconds(5),
    Checkpoints(),
    TrainerCommand(["python"]),
    TrainerArgs(["-V"]),
    RuntimePatch(training_runtime_spec=TrainingRuntimeSpecPatch()),
    DeleteAfter(60),
    DistributedConfig(),
    GangScheduling("night"),
    ManagedBy("kueue.x-k8s.io/multikueue"),
    MoreMemory("32Gi"),
    RestartPolicy(),
    Reuse("30d"),
    Partition("emea"),
    PriorityClass("high"),
    QueueName("night"),
    Stalled("20m"),
    StartWithin("6h"),
    Tracking(),
    Workspace(),
]


def _closure() -> Callable[[], int]:
    local = 5

    def function() -> int:
        return local

    return function


#: Changes that make the JSON of a valid request invalid, and the expected message.
_INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "a runtime that does not exist": ({"runtime": {"name": "nowhere"}}, r"runtime 'nowhere'.*{runtime}"),
    "a negative number of nodes": ({"trainer": {"kind": "custom", "num_nodes": -1}}, "trainer.num_nodes: .*-1"),
    "a name with a slash": ({"name": "a/b"}, "'a/b' is not a DNS label"),
    "a name that is too long": ({"name": "a" * 60}, "60 characters; use at most"),
    "an unknown field": ({"nodes": 3}, "nodes: "),
    "a source without a scheme": ({"initializer": {"dataset": {"storage_uri": "digits"}}}, "dataset.storage_uri: "),
    "an unknown version": ({"version": 2}, "version: "),
}


def _assert_refused(client: TrainerClient, request: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainerError, match=message) as refused:
        client.submit(TrainJobRequest.parse(request))
    assert len(str(refused.value).splitlines()) == 1
    assert client.list_jobs() == []


class Validation(Contract):
    """Invalid requests create nothing, rendering has no side effects, and no secret is shown."""

    @pytest.mark.parametrize("mistake", _INVALID)
    def test_an_invalid_request_is_refused_in_one_line_and_creates_nothing(
        self, case: BackendCase, client: TrainerClient, build_request: BuildRequest, mistake: str
    ) -> None:
        change, message = _INVALID[mistake]
        valid = build_request().to_dict()
        trainer = {**valid["trainer"], **change.get("trainer", {})}
        message = message.replace("{runtime}", re.escape(case.runtime))
        _assert_refused(client, {**valid, **change, "trainer": trainer}, message)

    @applies_to(reads_local_files=True)
    def test_a_missing_local_source_is_refused(self, client: TrainerClient, build_request: BuildRequest) -> None:
        fetch = {"dataset": {"storage_uri": "file:///no/such/folder"}}
        message = "initializer.dataset.storage_uri: /no/such/folder does not exist"
        _assert_refused(client, {**build_request().to_dict(), "initializer": fetch}, message)

    @applies_to(reads_local_files=False)
    def test_a_local_source_is_refused_by_a_backend_that_cannot_read_it(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        fetch = {"dataset": {"storage_uri": "file:///data"}}
        _assert_refused(client, {**build_request().to_dict(), "initializer": fetch}, "file://")

    @applies_to(runs_runtime_without_trainer=False)
    def test_a_request_with_nothing_to_run_is_refused(self, client: TrainerClient, build_request: BuildRequest) -> None:
        _assert_refused(client, {**build_request().to_dict(), "trainer": None}, "nothing to run")

    @pytest.mark.parametrize(
        ("mistake", "message"),
        [
            (lambda: CustomTrainer(func=return_value, num_nodes=-1), "num_nodes must be .*-1"),
            (lambda: Name("a/b"), "'a/b' is not a DNS label"),
            (lambda: CustomTrainer(func="no colon"), "must be a function or 'package.module:function'"),
            (lambda: FileDatasetInitializer("digits"), "'scheme://rest'"),
        ],
        ids=["negative nodes", "a slash", "no function", "no scheme"],
    )
    def test_an_invalid_definition_is_refused_in_one_line_by_its_constructor(
        self, mistake: Callable[[], Any], message: str, case: BackendCase
    ) -> None:
        with pytest.raises(ValueError, match=message) as refused:
            mistake()
        assert len(str(refused.value).splitlines()) == 1

    @pytest.mark.parametrize("function", [_closure(), lambda: 1], ids=["a closure", "a lambda"])
    def test_a_function_that_cannot_be_packaged_is_refused(
        self, client: TrainerClient, build_request: BuildRequest, function: Callable[[], int]
    ) -> None:
        with pytest.raises(ValueError, match="cloudpickle") as refused:
            build_request(function)
        assert len(str(refused.value).splitlines()) == 1
        assert client.list_jobs() == []

    @pytest.mark.parametrize("option", ALL_OPTIONS, ids=[type(option).__name__ for option in ALL_OPTIONS])
    def test_an_option_is_accepted_only_by_backends_that_support_it(self, client: TrainerClient, option: Any) -> None:
        trainer = CustomTrainerContainer(image="train:1")
        refusal = None
        try:
            request_builder.build_request_data(backend=type(client.backend), trainer=trainer, options=[option])
        except ValueError as error:
            refusal = str(error)
        assert (refusal is None) == (type(option).__name__ in client.backend.accepts)
        assert (refusal or "x is not compatible with y").splitlines()[0].partition(" is not compatible with ")[2]

    def test_the_rendered_manifest_depends_only_on_the_json_of_the_request(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(return_value, {"value": 1}, env={"A": "b"}, options=[Labels({"a": "b"})])
        before = request.to_json()
        rendered = client.render(request)
        assert client.render(TrainJobRequest.from_json(before)) == rendered == client.render(request)
        assert request.to_json() == before

    def test_rendering_creates_nothing(self, client: TrainerClient, build_request: BuildRequest) -> None:
        client.render(build_request())
        assert client.list_jobs() == []

    def test_a_literal_secret_does_not_appear_in_the_serialized_request(self, build_request: BuildRequest) -> None:
        source = HuggingFaceDatasetInitializer("hf://owner/data", access_token=_SECRET)
        request = build_request().with_fields(literal_secrets={"dataset.ACCESS_TOKEN": SecretStr(_SECRET)})
        texts = [request.to_json(), repr(request), str(request), str(request.to_dict()), repr(source)]
        assert [text for text in texts if _SECRET in text] == []
        assert request.context.literal_secrets["dataset.ACCESS_TOKEN"].get_secret_value() == _SECRET

    def test_a_literal_secret_does_not_appear_in_messages_or_logs(
        self, client: TrainerClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Nothing listens on this port, in case the client fetches the dataset itself.
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        source = HuggingFaceDatasetInitializer("hf://owner/data", access_token=_SECRET)
        caplog.set_level("DEBUG")
        message = ""
        try:
            client.initialize(Initializer(dataset=source), [Name("job")])
        except TrainerError as error:
            message = str(error)
        assert _SECRET not in message + caplog.text

    def test_a_secret_reference_stays_a_reference(self) -> None:
        source = HuggingFaceDatasetInitializer("hf://owner/data", access_token=SecretRef("hub", "token"))
        data = request_builder.build_request_data(backend=None, initializer=Initializer(dataset=source))
        assert data["initializer"]["dataset"]["secrets"] == {"ACCESS_TOKEN": {"name": "hub", "key": "token"}}

    def test_reading_an_absent_job_or_runtime_raises_a_not_found_error(
        self, case: BackendCase, client: TrainerClient
    ) -> None:
        for read in (client.get_job, client.get_job_events, client.get_job_logs, client.get_job_ref, client.observe):
            with pytest.raises(JobNotFoundError, match="'absent'") as refused:
                read("absent")
            assert isinstance(refused.value, RuntimeError)
        with pytest.raises(RuntimeNotFoundError, match=rf"'absent'.*{re.escape(case.runtime)}"):
            client.get_runtime("absent")

    def test_a_request_with_neither_name_nor_owner_is_refused(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        nameless = build_request().with_fields(name=None)
        with pytest.raises(InvalidRequestError, match="neither a name nor an owner"):
            client.submit(nameless)
        assert client.list_jobs() == []

    @applies_to(reads_local_files=True)
    def test_a_source_deleted_before_submit_is_refused(
        self, client: TrainerClient, build_request: BuildRequest, tmp_path: Path
    ) -> None:
        (tmp_path / "digits").mkdir()
        request = build_request(initializer=Initializer(dataset=FileDatasetInitializer((tmp_path / "digits").as_uri())))
        (tmp_path / "digits").rmdir()
        with pytest.raises(InvalidRequestError, match="digits does not exist"):
            client.submit(request)
        assert client.list_jobs() == []
