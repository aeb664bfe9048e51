"""The public API against that of the Kubeflow SDK: every class, argument, default, method and error."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_jsonable_python

import trainer_core
import trainer_core.options
from trainer_core.constants import constants

#: By class: its arguments and methods with the repr of each default, lists that are defaults, settings and errors.
REFERENCE = json.loads((Path(__file__).with_name("data") / "sdk_api.json").read_bytes())
REFERENCE_NAMES = [
    "TrainerClient",
    "CustomTrainer",
    "CustomTrainerContainer",
    "BuiltinTrainer",
    "TorchTuneConfig",
    "LoraConfig",
    "TorchTuneInstructDataset",
    "DataType",
    "DataFormat",
    "Loss",
    "Initializer",
    "HuggingFaceDatasetInitializer",
    "HuggingFaceModelInitializer",
    "S3DatasetInitializer",
    "S3ModelInitializer",
    "DataCacheInitializer",
    "Runtime",
    "RuntimeKind",
    "RuntimeTrainer",
    "TrainerType",
    "TrainJobTemplate",
    "Event",
    "LocalProcessBackendConfig",
    "ContainerBackendConfig",
    "KubernetesBackendConfig",
    "TrainingRuntimeSource",
    "DATASET_PATH",
    "MODEL_PATH",
    "get_tpu_num_nodes",
    "update_trainjob_status",
    "OptimizerClient",
    "Search",
    "RandomSearch",
    "GridSearch",
    "Objective",
    "Direction",
    "TrialConfig",
    "OptimizationJob",
    "Trial",
    "Result",
    "Metric",
]
REFERENCE_TYPES = [name for name in REFERENCE_NAMES[: REFERENCE_NAMES.index("Event") + 1] if name != "TrainerClient"]
REFERENCE_OPTIONS = [
    "ActiveDeadlineSeconds",
    "Annotations",
    "ContainerPatch",
    "JobSetSpecPatch",
    "JobSetTemplatePatch",
    "JobSpecPatch",
    "JobTemplatePatch",
    "Labels",
    "Name",
    "PodSpecPatch",
    "PodTemplatePatch",
    "ReplicatedJobPatch",
    "RuntimePatch",
    "TrainerArgs",
    "TrainerCommand",
    "TrainingRuntimeSpecPatch",
]
#: Airflow calls these on whatever it finds in a template field, or in an XCom.
AIRFLOW_HOOKS = {"resolve", "serialize", "template_fields"}


def having(part: str) -> list[Any]:
    """Return the classes of the reference that have a part, each with it."""
    return [
        pytest.param(owner, described[part], id=owner) for owner, described in REFERENCE.items() if part in described
    ]


def find(path: str) -> Any:
    """Return what the reference calls so, such as ``options.Name`` or ``KubernetesBackendConfig.Config``."""
    found: Any = trainer_core
    for name in path.split("."):
        found = getattr(found, name)
    return found


def read_defaults(function: Any) -> dict[str, str]:
    """Return the parameters of a callable with the repr of their defaults."""
    return {
        name: "REQUIRED" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    }


def public_classes() -> list[type[Any]]:
    found = {getattr(trainer_core, name) for name in trainer_core.__all__}
    return sorted((each for each in found if inspect.isclass(each)), key=lambda each: each.__name__)


@pytest.mark.parametrize("owner", REFERENCE)
def test_a_class_of_the_reference_exists(owner):
    assert inspect.isclass(find(owner))


@pytest.mark.parametrize(("owner", "arguments"), having("arguments"))
def test_arguments_of_the_reference_come_first_in_its_order_and_with_its_defaults(owner, arguments):
    assert list(read_defaults(find(owner)).items())[: len(arguments)] == list(arguments.items())


@pytest.mark.parametrize(("owner", "methods"), having("methods"))
def test_methods_of_the_reference_take_its_arguments_with_its_defaults(owner, methods):
    taken = {name: read_defaults(getattr(find(owner), name)) for name in methods}
    assert {name: taken[name] | arguments for name, arguments in methods.items()} == taken


@pytest.mark.parametrize(("owner", "settings"), having("settings"))
def test_a_configuration_has_the_settings_of_the_reference_with_its_defaults(owner, settings):
    fields = find(owner).model_fields
    defaults = {name: fields[name].get_default(call_default_factory=True) for name in settings}
    assert to_jsonable_python(defaults) == settings


@pytest.mark.parametrize(("owner", "model_config"), having("model_config"))
def test_a_configuration_is_configured_as_in_the_reference(owner, model_config):
    assert find(owner).model_config.items() >= model_config.items()


@pytest.mark.parametrize(("owner", "errors"), having("raises"))
def test_the_errors_of_the_reference_are_documented(owner, errors):
    documented = [find(owner), *(member for _, member in inspect.getmembers(find(owner), callable))]
    text = "\n".join(inspect.getdoc(each) or "" for each in documented)
    assert [error for error in errors if error not in text] == []


@pytest.mark.parametrize(("owner", "lists"), having("lists"))
def test_a_default_list_has_the_values_of_the_reference(owner, lists):
    fields = {field.name: field for field in dataclasses.fields(find(owner))}
    assert {name: fields[name].default_factory() for name in lists} == lists


@pytest.mark.parametrize("name", REFERENCE_NAMES)
def test_a_name_of_the_reference_is_exported(name):
    assert name in trainer_core.__all__


@pytest.mark.parametrize("name", REFERENCE_OPTIONS)
def test_an_option_of_the_reference_is_exported(name):
    assert name in trainer_core.options.__all__


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("trainer_core.options.kubernetes", REFERENCE_OPTIONS),
        ("trainer_core.options.common", ["Name"]),
        ("trainer_core.types.types", [*REFERENCE_TYPES, "TORCH_TUNE"]),
    ],
)
def test_a_module_of_the_reference_has_its_names(module, names):
    found = importlib.import_module(module)
    own = {**vars(trainer_core.options), **{name: getattr(trainer_core, name) for name in trainer_core.__all__}}
    assert {name: getattr(found, name) for name in names} == {name: own.get(name, "torchtune") for name in names}


def test_the_constants_of_the_reference_have_its_values():
    reference = {
        "GROUP": "trainer.kubeflow.org",
        "VERSION": "v1alpha1",
        "TRAINJOB_PLURAL": "trainjobs",
        "CLUSTER_TRAINING_RUNTIME_PLURAL": "clustertrainingruntimes",
        "TRAINING_RUNTIME_PLURAL": "trainingruntimes",
        "TRAINJOB_CREATED": "Created",
        "TRAINJOB_RUNNING": "Running",
        "TRAINJOB_COMPLETE": "Complete",
        "TRAINJOB_FAILED": "Failed",
        "RUNTIME_FRAMEWORK_LABEL": "trainer.kubeflow.org/framework",
        "TRAINJOB_ANCESTOR_LABEL": "trainer.kubeflow.org/trainjob-ancestor-step",
        "DATASET_INITIALIZER": "dataset-initializer",
        "MODEL_INITIALIZER": "model-initializer",
        "NODE": "node",
        "GPU_LABEL": "nvidia.com/gpu",
        "DATASET_PATH": "/workspace/dataset",
        "MODEL_PATH": "/workspace/model",
        "DEFAULT_TRAINING_RUNTIME": "torch-distributed",
    }
    assert {name: getattr(constants, name) for name in reference} == reference


def test_no_exported_name_is_missing():
    assert [name for name in trainer_core.__all__ if not hasattr(trainer_core, name)] == []


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_no_public_class_has_an_attribute_that_airflow_would_call(kind):
    assert AIRFLOW_HOOKS.isdisjoint(dir(kind))


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_a_public_class_is_documented(kind):
    assert inspect.getdoc(kind)


@pytest.mark.parametrize("kind", [each for each in public_classes() if dataclasses.is_dataclass(each)])
def test_each_argument_of_a_public_dataclass_is_documented(kind):
    document = kind.__doc__ or ""
    assert [field.name for field in dataclasses.fields(kind) if f"{field.name}: " not in document] == []


def test_what_a_search_returns_is_made_of_the_arguments_of_the_reference():
    now = datetime(2026, 11, 28, tzinfo=timezone.utc)
    metrics = [trainer_core.Metric("loss", "0.1", "0.3", "0.1")]
    result = trainer_core.Result({"rate": "0.1"}, metrics)
    job = trainer_core.OptimizationJob(
        "search", {}, [], trainer_core.GridSearch(), trainer_core.TrialConfig(), [], now, "Created"
    )
    assert (result.parameters, result.metrics, job.status) == ({"rate": "0.1"}, metrics, "Created")
    assert (trainer_core.GridSearch().algorithm_name, trainer_core.RandomSearch().algorithm_name) == ("grid", "random")
