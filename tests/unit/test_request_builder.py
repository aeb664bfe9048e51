"""Requests are built from trainers, initializers, runtimes and options, and options from plain data."""

from __future__ import annotations

import copy
import json

import pytest

from trainer_core import (
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    QueueName,
    ReplicatedJobPatch,
    RuntimePatch,
    Suspend,
    TrainingRuntimeSpecPatch,
)
from trainer_core.backends import backend_class
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.base.secrets import SecretRef
from trainer_core.client import backend_for
from trainer_core.definition import request_builder
from trainer_core.definition.initializers import (
    DataCacheInitializer,
    FileDatasetInitializer,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    S3DatasetInitializer,
    VolumeDatasetInitializer,
)
from trainer_core.definition.options import (
    ActiveDeadlineSeconds,
    Annotations,
    DeleteAfter,
    Labels,
    ManagedBy,
    Name,
    TrainerArgs,
    Workspace,
)
from trainer_core.definition.request_builder import parse_options
from trainer_core.definition.trainers import BuiltinTrainer, CustomTrainer, CustomTrainerContainer
from trainer_core.model.backend_names import OWN_BACKENDS
from trainer_core.model.request import Owner, TrainJobRequest
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType
from trainer_core.model.torchtune import LoraConfig, TorchTuneConfig

LOCAL = backend_class("local")


class AnyBackend:
    """Accepts whatever the options module offers."""

    name = "any"
    accepts = frozenset({"Name", "Labels", "Annotations", "TrainerCommand", "TrainerArgs", "RuntimePatch"})


class Cluster:
    """Accepts what only a cluster has."""

    name = "cluster"
    accepts = frozenset({"ManagedBy", "DeleteAfter", "Workspace"})


def train(epochs: int, rate: float = 0.1):
    return epochs * rate


def test_a_function_with_all_settings_becomes_plain_json():
    trainer = CustomTrainer(
        func=train,
        func_args={"epochs": "{{ params.epochs }}"},
        packages_to_install=["numpy"],
        num_nodes="{{ params.nodes }}",
        num_proc_per_node=2,
        resources_per_node={"cpu": 2},
        env={"DAY": "{{ ds }}"},
    )
    data = request_builder.build_request_data(
        backend=LOCAL,
        runtime="python",
        trainer=trainer,
        initializer=Initializer(dataset=FileDatasetInitializer(storage_uri="file:///data", ignore_patterns=["*.tmp"])),
        options=[Name("job"), Labels({"team": "vision"}), Annotations({"note": "x"}), ActiveDeadlineSeconds(60)],
    )

    assert json.loads(json.dumps(data)) == data
    assert data["trainer"]["code"]["args"] == {"epochs": "{{ params.epochs }}"}
    assert data["trainer"]["num_nodes"] == "{{ params.nodes }}"
    assert data["initializer"] == {"dataset": {"storage_uri": "file:///data", "ignore_patterns": ["*.tmp"]}}
    assert data["metadata"] == {"labels": {"team": "vision"}, "annotations": {"note": "x"}}
    assert (data["name"], data["active_deadline_seconds"]) == ("job", 60)


def test_data_with_rendered_templates_is_a_valid_request():
    data = request_builder.build_request_data(
        backend=LOCAL, trainer=CustomTrainer(func=train, func_args={"epochs": "{{ e }}"}, num_nodes="{{ n }}")
    )
    rendered = json.loads(json.dumps(data).replace("{{ e }}", "3").replace("{{ n }}", "2"))
    request = TrainJobRequest.parse({**rendered, "name": "job"})

    assert request.work.trainer.code.args["epochs"] == 3
    assert request.work.trainer.num_nodes == 2


def test_building_twice_gives_equal_data_and_does_not_change_the_arguments():
    trainer = CustomTrainer(func=train, func_args={"epochs": 1}, env={"A": "1"})
    before = copy.deepcopy(trainer)

    assert request_builder.build_request_data(backend=LOCAL, trainer=trainer) == request_builder.build_request_data(
        backend=LOCAL, trainer=trainer
    )
    assert trainer == before


def test_a_trainer_can_be_given_as_a_dict():
    by_dict = request_builder.build_request_data(
        backend=LOCAL, trainer={"func": "json:dumps", "func_args": {"obj": 1}, "num_nodes": 2}
    )
    by_object = request_builder.build_request_data(
        backend=LOCAL, trainer=CustomTrainer(func="json:dumps", func_args={"obj": 1}, num_nodes=2)
    )

    assert by_dict == by_object


def test_a_secret_in_the_environment_stays_a_reference():
    trainer = CustomTrainerContainer("x:1", env={"TOKEN": SecretRef("hub", "token"), "DAY": "{{ ds }}"})
    data = request_builder.build_request_data(backend=AnyBackend, trainer=trainer)

    assert data["trainer"]["env"] == {"TOKEN": {"name": "hub", "key": "token"}, "DAY": "{{ ds }}"}
    assert TrainJobRequest.parse(data).work.trainer.env["TOKEN"] == SecretRef("hub", "token")


def test_settings_for_kubernetes_are_part_of_the_request():
    options = [
        ManagedBy("kueue.x-k8s.io/multikueue"),
        DeleteAfter(3600),
        Workspace("data", "100Gi", access_mode="ReadWriteMany"),
    ]
    request = request_builder.build_request(backend=Cluster, options=options)

    assert request.policy.managed_by == "kueue.x-k8s.io/multikueue"
    assert request.policy.delete_after_seconds == 3600
    assert (request.work.workspace.claim, request.work.workspace.size) == ("data", "100Gi")
    assert (request.work.workspace.storage_class, request.work.workspace.access_mode) == (None, "ReadWriteMany")


@pytest.mark.parametrize("backend", ["local", "debug"])
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"managed_by": "kueue.x-k8s.io/multikueue"}, "managed_by"),
        ({"workspace": {}}, "workspace"),
        ({"delete_after_seconds": 60}, "delete_after_seconds"),
    ],
)
def test_settings_for_kubernetes_are_refused_by_other_backends(tmp_path, monkeypatch, backend, fields, named):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path))
    trainer = {"kind": "custom", "code": {"kind": "reference", "text": "a:f", "entry": "f"}}
    request = TrainJobRequest.parse({"name": "job", "runtime": {"name": "python"}, "trainer": trainer, **fields})

    with pytest.raises(
        UnsupportedError, match=f"{named}: the {backend} backend has no .*; remove it, or use one of "
    ) as refused:
        backend_class(backend)().render(request)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("backend", "fields", "named"),
    [
        ("kubernetes", {"pytorch_job": {"restart_policy": "Never"}}, "pytorch_job"),
        ("kubernetes", {"runai": {"spec": {"image": "x"}}}, "runai"),
        ("training-operator", {"runai": {"spec": {"image": "x"}}}, "runai"),
        ("container", {"start_within": 60}, "start_within"),
        ("local", {"more_memory": {"limit": "1Gi"}}, "more_memory"),
        ("runai", {"active_deadline_seconds": 1}, "active_deadline_seconds"),
        ("debug", {"suspend": True}, "suspend"),
    ],
)
def test_a_field_whose_option_a_backend_does_not_have_is_refused_with_the_backends_that_have_it(backend, fields, named):
    with pytest.raises(UnsupportedError, match=f"^{named}: the {backend} backend has no .*; remove it, or use one of "):
        TrainJobRequest.parse(fields).check_options(backend)


@pytest.mark.parametrize("backend", ["local", "debug"])
def test_a_volume_claim_is_refused_by_backends_without_kubernetes(tmp_path, monkeypatch, backend):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path))
    sources = Initializer(dataset=VolumeDatasetInitializer("pvc://claim/dataset"))
    cluster = backend_class("kubernetes")
    request = request_builder.build_request(backend=cluster, runtime="python", initializer=sources).with_name("job")

    with pytest.raises((UnsupportedError, InvalidRequestError), match=r"initializer.dataset.*pvc://"):
        backend_class(backend)().submit(request)


SOURCES = ["hf://a/b", "s3://b", "file:///d", "pvc://c/d", "gs://b/k", "az://b/k", "https://h/x"]
HAS_SCHEME = {
    (name, uri): uri.partition("://")[0] in backend_class(name).schemes
    for name in sorted(OWN_BACKENDS)
    for uri in SOURCES
}


@pytest.mark.parametrize(("backend", "uri"), [pair for pair, known in HAS_SCHEME.items() if not known])
def test_a_source_is_refused_when_a_request_is_built_for_a_backend_without_its_scheme(backend, uri):
    sources = Initializer(dataset=HuggingFaceDatasetInitializer(uri))
    with pytest.raises(
        UnsupportedError, match=r"^initializer\.dataset: .*:// is not supported by .*Backend.*; use one of"
    ):
        request_builder.build_request_data(backend=backend_class(backend), initializer=sources)


@pytest.mark.parametrize(("backend", "uri"), [pair for pair, known in HAS_SCHEME.items() if known])
def test_a_source_and_a_template_of_one_are_accepted_by_a_backend_with_its_scheme(backend, uri):
    for each in (uri, f"{{{{ '{uri}' }}}}"):
        sources = Initializer(dataset=HuggingFaceDatasetInitializer(each))
        data = request_builder.build_request_data(backend=backend_class(backend), initializer=sources)
        assert data["initializer"]["dataset"]["storage_uri"] == each


def test_a_runtime_object_keeps_its_kind():
    runtime = Runtime("mine", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "torch", "x"), RuntimeKind.TRAINING_RUNTIME)

    assert request_builder.build_request_data(backend=LOCAL, runtime=runtime)["runtime"] == {
        "name": "mine",
        "kind": "TrainingRuntime",
    }


def test_a_builtin_trainer_has_the_configuration_of_its_recipe():
    config = TorchTuneConfig(epochs=2, num_nodes=1, resources_per_node={"gpu": 1}, peft_config=LoraConfig(lora_rank=8))
    trainer = request_builder.build_request_data(backend=AnyBackend, trainer=BuiltinTrainer(config))["trainer"]

    assert trainer["kind"] == "builtin"
    assert (trainer["num_nodes"], trainer["resources_per_node"]) == (1, {"gpu": 1})
    assert trainer["config"]["peft_config"]["lora_rank"] == 8
    assert TrainJobRequest.parse({"trainer": trainer, "name": "job"}).work.trainer.config == trainer["config"]


def test_command_options_replace_the_command_of_the_image():
    data = request_builder.build_request_data(
        backend=AnyBackend, trainer=CustomTrainerContainer(image="x:1"), options=[TrainerArgs(["--epochs", "3"])]
    )

    assert data["trainer"] == {"kind": "container", "image": "x:1", "args": ["--epochs", "3"]}


def test_settings_of_initializers_have_trainers_environment_names():
    cache = DataCacheInitializer(
        storage_uri="cache://db/table", metadata_loc="s3://m", num_data_nodes=3, worker_mem="2Gi"
    )
    data = request_builder.build_request_data(backend=AnyBackend, initializer=Initializer(dataset=cache))

    assert data["initializer"]["dataset"]["env"] == {"METADATA_LOC": "s3://m", "CLUSTER_SIZE": "4", "WORKER_MEM": "2Gi"}


def test_secrets_of_initializers_stay_references():
    model = HuggingFaceModelInitializer(storage_uri="hf://org/model", access_token=SecretRef("hf", "token"))
    data = request_builder.build_request_data(backend=AnyBackend, initializer=Initializer(model=model))

    assert data["initializer"]["model"]["secrets"] == {"ACCESS_TOKEN": {"name": "hf", "key": "token"}}


def test_request_data_with_a_literal_secret_is_refused():
    dataset = S3DatasetInitializer(storage_uri="s3://bucket/x", secret_access_key="top-secret")

    with pytest.raises(ValueError, match=r"dataset.SECRET_ACCESS_KEY.*SecretRef") as raised:
        request_builder.build_request_data(backend=AnyBackend, initializer=Initializer(dataset=dataset))
    assert "top-secret" not in str(raised.value)


@pytest.mark.parametrize("login", ["me:top-secret", "top-secret"])
def test_request_data_with_credentials_in_an_index_url_is_refused(login):
    trainer = CustomTrainer(
        func=train,
        func_args={"epochs": 1},
        packages_to_install=["numpy"],
        pip_index_urls=[f"https://{login}@packages.example.com/simple"],
    )

    with pytest.raises(ValueError, match=r"pip_index_urls.*password") as raised:
        request_builder.build_request_data(backend=LOCAL, trainer=trainer)
    assert "top-secret" not in str(raised.value)


def test_a_literal_secret_of_a_request_stays_in_the_process():
    dataset = S3DatasetInitializer(storage_uri="s3://bucket/x", secret_access_key="top-secret")
    request = request_builder.build_request(backend=AnyBackend, initializer=Initializer(dataset=dataset))

    assert request.context.literal_secrets["dataset.SECRET_ACCESS_KEY"].get_secret_value() == "top-secret"
    assert "top-secret" not in request.to_json()


def test_the_owner_is_part_of_the_request():
    request = request_builder.build_request(
        backend=LOCAL, trainer=CustomTrainer(func=train, func_args={"epochs": 1}), owner=Owner(key="k")
    )

    assert request.context.owner.key == "k"


def test_an_option_that_the_backend_does_not_accept_fails_at_once():
    with pytest.raises(ValueError, match=r"TrainerArgs.*LocalProcessBackend"):
        request_builder.build_request_data(
            backend=LOCAL, trainer=CustomTrainerContainer(image="x"), options=[TrainerArgs(["a"])]
        )


def test_a_key_that_a_request_cannot_represent_is_refused():
    def option(job_spec, trainer, backend):
        job_spec["spec"]["ttl"] = 3

    with pytest.raises(ValueError, match=r"spec\.ttl.*RuntimePatch"):
        request_builder.build_request_data(backend=LOCAL, options=[option])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trainer": 3}, "trainer must be CustomTrainer"),
        ({"runtime": 3}, "runtime must be a name"),
        ({"options": [3]}, "options must be callables"),
        ({"trainer": {"funk": "a:b"}}, "func"),
    ],
)
def test_an_invalid_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        request_builder.build_request_data(backend=LOCAL, **arguments)


_TREE = RuntimePatch(
    TrainingRuntimeSpecPatch(
        JobSetTemplatePatch(
            spec=JobSetSpecPatch(
                [
                    ReplicatedJobPatch(
                        "node",
                        JobTemplatePatch(
                            spec=JobSpecPatch(
                                PodTemplatePatch(
                                    spec=PodSpecPatch(
                                        node_selector={"gpu": "h100"},
                                        containers=[ContainerPatch("node", env=[{"name": "A", "value": "b"}])],
                                    )
                                )
                            )
                        ),
                    )
                ]
            )
        )
    )
)


def _tree(node_selector, replicated_jobs):
    pod = {node_selector: {"gpu": "h100"}, "containers": [{"name": "node", "env": [{"name": "A", "value": "b"}]}]}
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
    return {"RuntimePatch": {"template": {"spec": {replicated_jobs: jobs}}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Suspend", Suspend()),
        ({"Suspend": None}, Suspend()),
        ({"QueueName": "nightly"}, QueueName("nightly")),
        ({"Labels": {"labels": "vision"}}, Labels({"labels": "vision"})),
        ({"ActiveDeadlineSeconds": 60}, ActiveDeadlineSeconds(60)),
        ({"ActiveDeadlineSeconds": {"seconds": 60}}, ActiveDeadlineSeconds(60)),
        ({"Workspace": {"claim": "data", "storageClass": "fast"}}, Workspace("data", storage_class="fast")),
        ("Workspace", Workspace()),
        (_tree("node_selector", "replicated_jobs"), _TREE),
        (_tree("nodeSelector", "replicatedJobs"), _TREE),
        (QueueName("nightly"), QueueName("nightly")),
    ],
)
def test_an_option_can_be_given_as_plain_data(given, expected):
    assert parse_options([given]) == [expected]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"QueueName": "nightly"}, "options must be a list such as"),
        ("Suspend", "options must be a list such as"),
        (["Queue"], r"unknown option Queue; known are .*QueueName"),
        (["TrainerClient"], "unknown option TrainerClient"),
        ([{"QueueName": "a", "PriorityClass": "b"}], "an option must be one name .*; got QueueName, PriorityClass"),
        ([{}], "got none"),
        ([{"QueueName": {"name": 1}}], "QueueName must be a name"),
        ([{"ActiveDeadlineSeconds": 0}], "must be a positive integer"),
        (["QueueName"], "QueueName needs name"),
        ([{"Suspend": True}], "option Suspend takes no settings, got bool"),
        ([{"Workspace": "data"}], "option Workspace takes a dict of claim, size, storage_class, access_mode, got str"),
        ([{"Workspace": {"sice": "1Gi"}}], "unknown field sice of Workspace; known are claim, size"),
        ([{"RuntimePatch": {"template": {"spec": {"jobs": []}}}}], "unknown field jobs of JobSetSpecPatch"),
        ([3], "options must be callables such as"),
    ],
)
def test_data_that_is_not_an_option_is_refused_in_one_line(given, message):
    with pytest.raises(ValueError, match=message) as refused:
        request_builder.build_request_data(backend=backend_for("kubernetes"), options=given)
    assert "\n" not in str(refused.value)


def test_options_as_plain_data_and_as_objects_give_the_same_request():
    named = request_builder.build_request_data(
        backend=backend_for("kubernetes"), options=[_tree("nodeSelector", "replicatedJobs")]
    )
    assert named == request_builder.build_request_data(backend=backend_for("kubernetes"), options=[_TREE])
