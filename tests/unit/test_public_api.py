"""The public face against the API reference: every class, argument, default, method and error of the checklist."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import trainer_core
import trainer_core.options

SHARED = Path(os.environ.get("TRAINJOB_SHARED") or Path(__file__).parents[2].parent / "shared")
CHECKLIST = SHARED / "spec" / "sdk_api_checklist.md"
needs_checklist = pytest.mark.skipif(
    not CHECKLIST.is_file(), reason=f"{CHECKLIST} is absent; TRAINJOB_SHARED names the folder that has it"
)

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
]
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

ROW = re.compile(r"- \[.\] (?P<id>\d+-\d+) \(L\d+\) `(?P<text>.*)`$")
PARAMETER = re.compile(r"(?P<owner>[\w.]+)#(?P<name>\w+) \[ctor[^]]*\] : .* = (?P<default>.*?)(?:  # (?P<note>.*))?$")
ARGUMENT = re.compile(r"(?P<owner>[\w.]+)\.(?P<method>\w+)\(\)#(?P<name>\w+) \[arg\] : .* = (?P<default>.*)$")
ATTRIBUTE = re.compile(
    r"(?P<owner>[\w.]+)@(?P<name>\w+) \[attr\] : .* = (?P<default>.*?)(?:  # default (?P<note>.*))?$"
)
KEYWORDS = re.compile(r"[\w.]+#\*\*data \[ctor\]")
CLASS = re.compile(r"CLASS (?P<owner>[\w.]+)$")
METHOD = re.compile(r"METHOD (?P<owner>[\w.]+)\.(?P<method>\w+)\(\) -> ")
RAISES = re.compile(r"RAISES (?P<owner>[\w.]+) : (?P<error>\w+) ")


class Row(NamedTuple):
    id: str
    text: str


def rows() -> list[Row]:
    lines = CHECKLIST.read_text(encoding="utf-8").splitlines() if CHECKLIST.is_file() else []
    return [Row(found["id"], found["text"]) for found in map(ROW.match, lines) if found]


def matching(pattern: re.Pattern[str]) -> list[Any]:
    found = [(row.id, pattern.match(row.text)) for row in rows()]
    return [pytest.param(match.groupdict(), id=f"{number}-{match[0]}") for number, match in found if match]


def named(path: str) -> Any:
    """What a row of the checklist calls so, such as ``options.Name`` or ``KubernetesBackendConfig.Config``."""
    found: Any = trainer_core
    for name in path.split("."):
        found = getattr(found, name)
    return found


def described(parameter: inspect.Parameter) -> str:
    return "REQUIRED" if parameter.default is inspect.Parameter.empty else repr(parameter.default)


def spellings(default: object) -> tuple[str, ...]:
    """How the notes of the checklist may write a default."""
    return (repr(default), f'"{default}"', str(default), f"{type(default).__name__}({default})".replace("'", '"'))


def positional(owner: str) -> list[str]:
    found = [PARAMETER.match(row.text) for row in rows()]
    return [match["name"] for match in found if match and match["owner"] == owner]


def public_classes() -> list[type[Any]]:
    found = {getattr(trainer_core, name) for name in trainer_core.__all__}
    return sorted((each for each in found if inspect.isclass(each)), key=lambda each: each.__name__)


@needs_checklist
def test_every_row_of_the_checklist_is_read():
    kinds = (PARAMETER, ARGUMENT, ATTRIBUTE, KEYWORDS, CLASS, METHOD, RAISES)
    assert [row for row in rows() if not any(kind.match(row.text) for kind in kinds)] == []
    assert len(rows()) == CHECKLIST.read_text(encoding="utf-8").count("- [")


@needs_checklist
@pytest.mark.parametrize("row", matching(CLASS))
def test_a_class_of_the_reference_exists(row):
    assert inspect.isclass(named(row["owner"]))


@needs_checklist
@pytest.mark.parametrize("row", matching(METHOD))
def test_a_method_of_the_reference_exists(row):
    assert callable(getattr(named(row["owner"]), row["method"]))


@needs_checklist
@pytest.mark.parametrize("row", matching(PARAMETER))
def test_a_constructor_takes_an_argument_with_the_default_of_the_reference(row):
    assert described(inspect.signature(named(row["owner"])).parameters[row["name"]]) == row["default"]


@needs_checklist
@pytest.mark.parametrize("owner", sorted({match.values[0]["owner"] for match in matching(PARAMETER)}))
def test_arguments_of_the_reference_come_first_and_in_its_order(owner):
    expected = positional(owner)
    assert list(inspect.signature(named(owner)).parameters)[: len(expected)] == expected


@needs_checklist
@pytest.mark.parametrize("row", matching(ARGUMENT))
def test_a_method_takes_an_argument_with_the_default_of_the_reference(row):
    method = getattr(named(row["owner"]), row["method"])
    assert described(inspect.signature(method).parameters[row["name"]]) == row["default"]


@needs_checklist
@pytest.mark.parametrize("row", [each for each in matching(ATTRIBUTE) if each.values[0]["note"]])
def test_a_configuration_has_a_setting_with_the_default_of_the_reference(row):
    default = named(row["owner"]).model_fields[row["name"]].get_default(call_default_factory=True)
    assert row["note"].startswith(spellings(default))


@needs_checklist
@pytest.mark.parametrize("row", [each for each in matching(ATTRIBUTE) if not each.values[0]["note"]])
def test_a_configuration_is_configured_as_in_the_reference(row):
    assert getattr(named(row["owner"]), row["name"]).items() >= ast.literal_eval(row["default"]).items()


@needs_checklist
@pytest.mark.parametrize("row", matching(RAISES))
def test_an_error_of_the_reference_is_documented(row):
    owner = named(row["owner"])
    documents = [inspect.getdoc(owner), *(inspect.getdoc(each) for _, each in inspect.getmembers(owner, callable))]
    assert any(row["error"] in (text or "") for text in documents)


@needs_checklist
@pytest.mark.parametrize("row", [each for each in matching(PARAMETER) if (each.values[0]["note"] or "").endswith("]")])
def test_a_default_list_has_the_value_of_the_reference(row):
    field = {field.name: field for field in dataclasses.fields(named(row["owner"]))}[row["name"]]
    assert field.default_factory() == ast.literal_eval(row["note"].partition("-> ")[2])


@pytest.mark.parametrize("name", REFERENCE_NAMES)
def test_a_name_of_the_reference_is_exported(name):
    assert name in trainer_core.__all__


@pytest.mark.parametrize("name", REFERENCE_OPTIONS)
def test_an_option_of_the_reference_is_exported(name):
    assert name in trainer_core.options.__all__


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
