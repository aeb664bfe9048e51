"""Refusals: a mistake is one line that says how to mend it, before anything is created; secrets stay secret."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer_core import build
from trainer_core.client import TrainerClient
from trainer_core.distributed_config import DistributedConfig
from trainer_core.errors import InvalidRequestError, JobNotFoundError, RuntimeNotFoundError, TrainerError
from trainer_core.initializers import FileDatasetInitializer, HuggingFaceDatasetInitializer, Initializer
from trainer_core.options import (
    ActiveDeadlineSeconds,
    Annotations,
    DeleteAfter,
    GangScheduling,
    Labels,
    ManagedBy,
    Name,
    PriorityClass,
    PyTorchJobSpec,
    QueueName,
    RuntimePatch,
    Suspend,
    TrainerArgs,
    TrainerCommand,
    TrainingRuntimeSpecPatch,
    Workspace,
)
from trainer_core.options.runai import RunaiMasterSpec, RunaiSpec
from trainer_core.request import TrainJobRequest
from trainer_core.secrets import SecretRef
from trainer_core.testing.case import BackendCase, Contract, where
from trainer_core.testing.functions import returns
from trainer_core.trainers import CustomTrainer, CustomTrainerContainer

__all__ = ["OPTIONS", "Refusals"]

Ask = Callable[..., TrainJobRequest]

_SECRET = "hf_a-secret-token"  # noqa: S105 -- made up, to see that it does not leak

#: One of each.
OPTIONS: list[Any] = [
    Name("job"),
    Labels({"a": "b"}),
    Annotations({"a": "b"}),
    Suspend(),
    ActiveDeadlineSeconds(5),
    TrainerCommand(["python"]),
    TrainerArgs(["-V"]),
    RuntimePatch(training_runtime_spec=TrainingRuntimeSpecPatch()),
    DeleteAfter(60),
    DistributedConfig(),
    GangScheduling("night"),
    ManagedBy("kueue.x-k8s.io/multikueue"),
    PriorityClass("high"),
    PyTorchJobSpec(),
    QueueName("night"),
    RunaiMasterSpec(),
    RunaiSpec(),
    Workspace(),
]


def _closure() -> Callable[[], int]:
    local = 5

    def function() -> int:
        return local

    return function


#: Changes to a good request, as plain data, that make it a bad one; and what is said of them.
_BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a runtime that does not exist": ({"runtime": {"name": "nowhere"}}, "no runtime 'nowhere'.* there are .*"),
    "a negative number of nodes": ({"trainer": {"kind": "custom", "num_nodes": -1}}, "trainer.num_nodes: .*-1"),
    "a name with a slash": ({"name": "a/b"}, "'a/b' is not a DNS label"),
    "a name that is too long": ({"name": "a" * 60}, "60 characters; use at most"),
    "a field nobody knows": ({"nodes": 3}, "nodes: "),
    "a source without a scheme": ({"initializer": {"dataset": {"storage_uri": "digits"}}}, "dataset.storage_uri: "),
    "a version of the future": ({"version": 2}, "version: "),
}


def _refused(client: TrainerClient, request: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TrainerError, match=complaint) as refused:
        client.submit(TrainJobRequest.parse(request))
    assert len(str(refused.value).splitlines()) == 1
    assert client.list_jobs() == []


class Refusals(Contract):
    """Nothing is created by a mistake, nothing is done by rendering, no secret is told."""

    @pytest.mark.parametrize("mistake", _BAD)
    def test_a_mistake_in_a_request_is_one_line_and_creates_nothing(
        self, client: TrainerClient, ask: Ask, mistake: str
    ) -> None:
        change, complaint = _BAD[mistake]
        good = ask().to_dict()
        trainer = {**good["trainer"], **change.get("trainer", {})}
        _refused(client, {**good, **change, "trainer": trainer}, complaint)

    @where(reads_this_machine=True)
    def test_a_source_that_is_not_there_is_refused(self, client: TrainerClient, ask: Ask) -> None:
        fetch = {"dataset": {"storage_uri": "file:///no/such/folder"}}
        complaint = "initializer.dataset.storage_uri: /no/such/folder does not exist"
        _refused(client, {**ask().to_dict(), "initializer": fetch}, complaint)

    @where(reads_this_machine=False)
    def test_a_source_on_this_machine_is_refused_where_it_cannot_be_read(self, client: TrainerClient, ask: Ask) -> None:
        fetch = {"dataset": {"storage_uri": "file:///data"}}
        _refused(client, {**ask().to_dict(), "initializer": fetch}, "file://")

    @where(runs_bare_runtimes=False)
    def test_a_request_without_anything_to_run_is_refused(self, client: TrainerClient, ask: Ask) -> None:
        _refused(client, {**ask().to_dict(), "trainer": None}, "nothing to run")

    @pytest.mark.parametrize(
        ("mistake", "complaint"),
        [
            (lambda: CustomTrainer(func=returns, num_nodes=-1), "num_nodes must be .*-1"),
            (lambda: Name("a/b"), "'a/b' is not a DNS label"),
            (lambda: CustomTrainer(func="no colon"), "must be a function or 'package.module:function'"),
            (lambda: FileDatasetInitializer("digits"), "'scheme://rest'"),
        ],
        ids=["negative nodes", "a slash", "no function", "no scheme"],
    )
    def test_a_mistake_in_a_definition_is_one_line_where_it_is_written(
        self, mistake: Callable[[], Any], complaint: str, case: BackendCase
    ) -> None:
        with pytest.raises(ValueError, match=complaint) as refused:
            mistake()
        assert len(str(refused.value).splitlines()) == 1

    @pytest.mark.parametrize("function", [_closure(), lambda: 1], ids=["a closure", "a lambda"])
    def test_a_function_that_cannot_travel_is_refused(
        self, client: TrainerClient, ask: Ask, function: Callable[[], int]
    ) -> None:
        with pytest.raises(ValueError, match="cloudpickle") as refused:
            ask(function)
        assert len(str(refused.value).splitlines()) == 1
        assert client.list_jobs() == []

    @pytest.mark.parametrize("option", OPTIONS, ids=[type(option).__name__ for option in OPTIONS])
    def test_an_option_is_accepted_by_a_backend_that_names_it_and_refused_by_the_others(
        self, client: TrainerClient, option: Any
    ) -> None:
        trainer = CustomTrainerContainer(image="train:1")
        refusal = None
        try:
            build.plain(backend=type(client.backend), trainer=trainer, options=[option])
        except ValueError as error:
            refusal = str(error)
        assert (refusal is None) == (type(option).__name__ in client.backend.accepts)
        assert (refusal or "x is not compatible with y").splitlines()[0].partition(" is not compatible with ")[2]

    def test_rendering_depends_on_the_json_of_a_request_only(self, client: TrainerClient, ask: Ask) -> None:
        request = ask(returns, {"value": 1}, env={"A": "b"}, options=[Labels({"a": "b"})])
        before = request.to_json()
        rendered = client.render(request)
        assert client.render(TrainJobRequest.from_json(before)) == rendered == client.render(request)
        assert request.to_json() == before

    def test_rendering_creates_nothing(self, client: TrainerClient, ask: Ask) -> None:
        client.render(ask())
        assert client.list_jobs() == []

    def test_a_secret_given_as_text_is_in_no_text_form_of_the_request(self, client: TrainerClient) -> None:
        source = HuggingFaceDatasetInitializer("hf://owner/data", access_token=_SECRET)
        request = client.request(initializer=Initializer(dataset=source), options=[Name("job")])
        texts = [request.to_json(), repr(request), str(request), str(request.to_dict()), repr(source)]
        assert [text for text in texts if _SECRET in text] == []
        assert request.literal_secrets["dataset.ACCESS_TOKEN"].get_secret_value() == _SECRET

    def test_a_secret_given_as_text_is_in_no_message(
        self, client: TrainerClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Where this machine fetches, nobody answers.
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        source = HuggingFaceDatasetInitializer("hf://owner/data", access_token=_SECRET)
        caplog.set_level("DEBUG")
        message = ""
        try:
            client.initialize(Initializer(dataset=source), [Name("job")])
        except TrainerError as error:
            message = str(error)
        assert _SECRET not in message + caplog.text

    def test_a_secret_by_reference_is_kept_as_a_reference(self, client: TrainerClient) -> None:
        source = HuggingFaceDatasetInitializer("hf://owner/data", access_token=SecretRef("hub", "token"))
        data = build.plain(backend=client.backend, initializer=Initializer(dataset=source))
        assert data["initializer"]["dataset"]["secrets"] == {"ACCESS_TOKEN": {"name": "hub", "key": "token"}}

    def test_what_is_not_there_is_said_to_be_not_there(self, client: TrainerClient) -> None:
        for look in (client.get_job, client.get_job_events, client.get_job_logs, client.ref, client.observe):
            with pytest.raises(JobNotFoundError, match="'absent'") as refused:
                look("absent")
            assert isinstance(refused.value, RuntimeError)
        with pytest.raises(RuntimeNotFoundError, match=r"'absent'.* there are "):
            client.get_runtime("absent")

    def test_a_request_with_neither_name_nor_owner_is_refused(self, client: TrainerClient, ask: Ask) -> None:
        nameless = ask().model_copy(update={"name": None})
        with pytest.raises(InvalidRequestError, match="neither a name nor an owner"):
            client.submit(nameless)
        assert client.list_jobs() == []

    @where(reads_this_machine=True)
    def test_a_source_that_vanished_is_refused_before_anything_is_created(
        self, client: TrainerClient, ask: Ask, tmp_path: Path
    ) -> None:
        (tmp_path / "digits").mkdir()
        request = ask(initializer=Initializer(dataset=FileDatasetInitializer((tmp_path / "digits").as_uri())))
        (tmp_path / "digits").rmdir()
        with pytest.raises(InvalidRequestError, match="digits does not exist"):
            client.submit(request)
        assert client.list_jobs() == []
