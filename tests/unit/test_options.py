"""Options: what each writes into a job, which backends take it, and what it refuses."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest

from trainer_core.definition.options import (
    ActiveDeadlineSeconds,
    Annotations,
    DeleteAfter,
    GangScheduling,
    JobSetTemplatePatch,
    Labels,
    ManagedBy,
    MoreMemory,
    Name,
    Partition,
    PriorityClass,
    QueueName,
    RuntimePatch,
    StartWithin,
    Suspend,
    TrainerArgs,
    TrainerCommand,
    TrainingRuntimeSpecPatch,
    Workspace,
)
from trainer_core.definition.trainers import BuiltinTrainer, CustomTrainer, CustomTrainerContainer
from trainer_core.model.torchtune import TorchTuneConfig

MANAGER = "trainer.kubeflow.org/kubeflow-sdk"
OPTIONS = [
    Name("a-job"),
    Labels({"team": "vision"}),
    Annotations({"note": "any text"}),
    TrainerCommand(["python"]),
    TrainerArgs(["--epochs=3"]),
    RuntimePatch(),
    ActiveDeadlineSeconds(60),
    DeleteAfter(60),
    Suspend(),
    QueueName("team"),
    StartWithin("6h"),
    MoreMemory("32Gi"),
    Partition("emea"),
    PriorityClass("high"),
    ManagedBy("kueue.x-k8s.io/multikueue"),
    GangScheduling("team"),
    Workspace("data"),
]


@pytest.mark.parametrize("key", ["", " ", "a\0", "\ud800", "x" * 251, 5, None])
def test_a_partition_that_no_environment_variable_or_database_holds_is_refused(key):
    with pytest.raises(ValueError, match="partition must be a string of 1 to 250 characters"):
        Partition(key)


class EveryBackend:
    accepts: ClassVar[frozenset[str]] = frozenset(type(option).__name__ for option in OPTIONS)


class SmallBackend:
    accepts: ClassVar[frozenset[str]] = frozenset({"Name", "Suspend"})


def applied(*options, trainer=None, backend=EveryBackend):
    job_spec = {}
    for option in options:
        option(job_spec, trainer, backend)
    return job_spec


def jobset_patch(**metadata):
    return RuntimePatch(TrainingRuntimeSpecPatch(JobSetTemplatePatch(metadata=metadata)))


@pytest.mark.parametrize(
    ("option", "job_spec"),
    [
        (Name("a-job"), {"metadata": {"name": "a-job"}}),
        (Labels({"team": "vision"}), {"metadata": {"labels": {"team": "vision"}}}),
        (Annotations({"note": "any text"}), {"metadata": {"annotations": {"note": "any text"}}}),
        (TrainerCommand(["python", "-m"]), {"spec": {"trainer": {"command": ["python", "-m"]}}}),
        (TrainerArgs(["--epochs=3"]), {"spec": {"trainer": {"args": ["--epochs=3"]}}}),
        (RuntimePatch(), {"spec": {"runtimePatches": [{"manager": MANAGER}]}}),
        (ActiveDeadlineSeconds(60), {"spec": {"activeDeadlineSeconds": 60}}),
        (DeleteAfter(60), {"spec": {"ttlSecondsAfterFinished": 60}}),
        (StartWithin("6h"), {"spec": {"startWithin": "6h"}}),
        (MoreMemory("32Gi"), {"spec": {"moreMemory": {"limit": "32Gi", "factor": 1.5}}}),
        (Partition("emea"), {"spec": {"partition": "emea"}}),
        (Suspend(), {"spec": {"suspend": True}}),
        (QueueName("team"), {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}),
        (PriorityClass("high"), {"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}}}),
        (ManagedBy("kueue.x-k8s.io/multikueue"), {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}),
        (Workspace(), {"spec": {"workspace": {"size": "10Gi", "access_mode": "ReadWriteOnce"}}}),
    ],
)
def test_an_option_writes_the_field_of_the_trainjob(option, job_spec):
    assert applied(option) == job_spec


@pytest.mark.parametrize("limit", ["6", "6 weeks", "-6h", "1e9d", "0s", 0, -1, True, None, [], math.nan, math.inf])
def test_a_limit_that_is_no_duration_is_refused(limit):
    with pytest.raises(ValueError, match=r"^StartWithin limit must be a number of seconds, or a text such as '90s'"):
        StartWithin(limit)


@pytest.mark.parametrize("limit", ["0", "-1Gi", "32 GB", "1m", 32, "32", "900Ki", None, [], math.nan, True])
def test_a_limit_that_is_no_memory_is_refused(limit):
    with pytest.raises(ValueError, match=r"^MoreMemory limit: [^\n]*$"):
        MoreMemory(limit)


@pytest.mark.parametrize("factor", [1, 0.5, -2, 17, True, None, "2", math.nan, math.inf])
def test_a_factor_that_does_not_grow_or_grows_too_fast_is_refused(factor):
    with pytest.raises(ValueError, match=r"^MoreMemory factor must be a number greater than 1 and at most 16, got"):
        MoreMemory("32Gi", factor)


def test_gang_scheduling_is_merged_with_other_patches():
    job_spec = applied(jobset_patch(labels={"a": "1"}), GangScheduling("team"))
    metadata = {"labels": {"a": "1"}, "annotations": {"scheduling.volcano.sh/queue-name": "team"}}
    assert job_spec["spec"]["runtimePatches"] == [
        {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"metadata": metadata}}}
    ]


@pytest.mark.parametrize("option", [QueueName, PriorityClass, GangScheduling, Workspace])
@pytest.mark.parametrize("name", ["", "Team", "a_b", "a/b", "-a", "a" * 254, 3])
def test_an_invalid_object_name_is_refused(option, name):
    with pytest.raises(ValueError, match=f"{option.__name__}.* must be a name of at most 253 lower-case letters"):
        option(name)


@pytest.mark.parametrize("option", [QueueName, PriorityClass])
def test_a_name_that_is_not_a_label_value_is_refused(option):
    with pytest.raises(ValueError, match="63"):
        option("a" * 64)


@pytest.mark.parametrize("option", [QueueName, PriorityClass, GangScheduling, Workspace, ManagedBy, DeleteAfter])
def test_a_template_is_accepted(option):
    assert applied(option("{{ params.x }}"))


def test_an_unknown_controller_is_refused():
    with pytest.raises(ValueError, match=r"ManagedBy must be one of trainer.kubeflow.org/trainjob-controller, kueue"):
        ManagedBy("me")


@pytest.mark.parametrize("seconds", [0, -1, True, 1.5, "60", None])
def test_a_time_to_live_is_a_positive_number(seconds):
    with pytest.raises(ValueError, match="DeleteAfter seconds must be a positive integer"):
        DeleteAfter(seconds)


@pytest.mark.parametrize(
    "wrong",
    [{"size": "much"}, {"size": "0"}, {"size": -1}, {"storage_class": "Fast!"}, {"access_mode": "ReadOnlyMany"}],
)
def test_an_invalid_workspace_is_refused(wrong):
    with pytest.raises(ValueError, match=r"Workspace|quantity"):
        Workspace("data", **wrong)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: type(option).__name__)
def test_an_option_keeps_the_fields_of_other_options(option):
    job_spec = {"metadata": {"other": 1}, "spec": {"other": 2, "trainer": {"image": "i"}}}
    option(job_spec, None, EveryBackend)
    assert (job_spec["metadata"]["other"], job_spec["spec"]["other"]) == (1, 2)
    assert job_spec["spec"]["trainer"]["image"] == "i"


@pytest.mark.parametrize("backend", [SmallBackend, SmallBackend()], ids=["class", "instance"])
def test_an_unaccepted_option_is_refused_with_the_accepted_ones(backend):
    message = (
        "Labels option is not compatible with SmallBackend. Supported backends: KubernetesBackend and every other that "
        "accepts Labels; SmallBackend accepts Name, Suspend. In a definition for several backends, OnBackend gives "
        "Labels to one of them"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        applied(Labels({"team": "vision"}), backend=backend)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: type(option).__name__)
def test_a_backend_that_accepts_nothing_refuses_every_option(option):
    with pytest.raises(ValueError, match=r"option is not compatible with object.* accepts no options"):
        applied(option, backend=object())


def test_a_refused_option_writes_nothing():
    job_spec = {}
    with pytest.raises(ValueError, match="not compatible"):
        RuntimePatch()(job_spec, None, SmallBackend)
    assert job_spec == {}


def test_a_subclass_of_an_accepted_option_is_accepted():
    class TeamLabel(Labels):
        pass

    assert applied(TeamLabel({"team": "vision"})) == {"metadata": {"labels": {"team": "vision"}}}


@pytest.mark.parametrize(("option", "key"), [(Labels, "labels"), (Annotations, "annotations")])
def test_two_equal_options_are_merged_and_the_last_value_wins(option, key):
    both = applied(option({"a": "1", "b": "1"}), option({"b": "2", "c": "2"}))
    assert both["metadata"][key] == {"a": "1", "b": "2", "c": "2"}


def test_an_option_does_not_change_its_argument():
    given = {"a": "1"}
    applied(Labels(given), Labels({"b": "2"}))
    assert given == {"a": "1"}


@pytest.mark.parametrize("name", ["bad/name", "Bad", "", "-a", "a" * 64, "{{ ds }}", None])
def test_an_invalid_job_name_is_refused_in_one_line(name):
    with pytest.raises(ValueError, match="job name") as refused:
        Name(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "labels", [{"team": "vision"}, {"example.com/team": ""}, {"a": "A.b_c-1"}, {"day": "{{ ds }}"}, {}]
)
def test_labels_in_the_syntax_of_kubernetes_are_accepted(labels):
    assert Labels(labels).labels == labels


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "labels must be a dict"),
        ("x", "labels must be a dict"),
        ({1: "x"}, "labels must have strings as keys, got 1"),
        ({"": "x"}, "labels key '' is not a label key"),
        ({"a b": "x"}, "labels key 'a b' is not a label key"),
        ({"/a": "x"}, "labels key '/a' is not a label key"),
        ({"Example.com/a": "x"}, "is not a label key"),
        ({"a" * 64: "x"}, "is not a label key"),
        ({"a": "-x"}, r"labels\['a'\] must be a string of at most 63"),
        ({"a": "x" * 64}, r"labels\['a'\] must be a string of at most 63"),
        ({"a": 1}, r"labels\['a'\] must be a string"),
        ({"a": "x\n"}, r"labels\['a'\] must be a string"),
    ],
)
def test_an_invalid_label_is_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        Labels(labels)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (None, "annotations must be a dict"),
        ({"a b": "x"}, "annotations key 'a b' is not a label key"),
        ({"a": 1}, r"annotations\['a'\] must be a string, got 1; put it in quotes"),
        ({"a": "\ud800"}, r"annotations\['a'\] must be a string"),
        ({"a": "x" * 2**18}, "annotations have 262145 bytes together; use at most 262144"),
    ],
)
def test_an_invalid_annotation_is_refused(annotations, message):
    with pytest.raises(ValueError, match=message):
        Annotations(annotations)


@pytest.mark.parametrize("option", [TrainerCommand(["python"]), TrainerArgs(["--epochs=3"])])
@pytest.mark.parametrize("trainer", [CustomTrainerContainer("train:1.0"), None])
def test_command_and_args_require_an_image_or_no_trainer(option, trainer):
    assert applied(option, trainer=trainer)["spec"]["trainer"]


@pytest.mark.parametrize("option", [TrainerCommand(["python"]), TrainerArgs(["--epochs=3"])])
@pytest.mark.parametrize("trainer", [CustomTrainer("train:main"), BuiltinTrainer(TorchTuneConfig())])
def test_command_and_args_are_refused_with_another_trainer(option, trainer):
    with pytest.raises(ValueError, match=r"Trainer(Command|Args) can only be used with CustomTrainerContainer\. "):
        applied(option, trainer=trainer)


@pytest.mark.parametrize("option", [TrainerCommand, TrainerArgs])
@pytest.mark.parametrize("arguments", ["python train.py", None, [1], ["a\0b"], ["x"] * 129, {"a": 1}])
def test_an_invalid_command_line_is_refused(option, arguments):
    with pytest.raises(ValueError, match=r"(command|args).* (must be|use at most)"):
        option(arguments)


def test_an_empty_argument_is_accepted():
    assert applied(TrainerArgs(["--prefix", ""]))["spec"]["trainer"]["args"] == ["--prefix", ""]


def test_changing_the_list_later_does_not_change_the_option():
    option = TrainerCommand(["python"])
    applied(option)["spec"]["trainer"]["command"].append("-c")
    assert option.command == ["python"]


@pytest.mark.parametrize("seconds", [1, 86400, "{{ params.deadline }}"])
def test_a_deadline_is_a_positive_number(seconds):
    assert applied(ActiveDeadlineSeconds(seconds))["spec"]["activeDeadlineSeconds"] == seconds


@pytest.mark.parametrize("seconds", [0, -1, True, 1.5, "60", None, 2**63])
def test_an_invalid_deadline_is_refused(seconds):
    with pytest.raises(ValueError, match=r"activeDeadlineSeconds must be a positive integer \(minimum 1\), got"):
        ActiveDeadlineSeconds(seconds)


def test_a_patch_names_its_manager():
    assert RuntimePatch().manager == MANAGER


def test_several_patches_are_merged():
    spec = applied(
        jobset_patch(labels={"a": "1"}), jobset_patch(labels={"b": "2"}), jobset_patch(annotations={"c": "3"})
    )
    metadata = {"labels": {"a": "1", "b": "2"}, "annotations": {"c": "3"}}
    assert spec["spec"]["runtimePatches"] == [
        {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"metadata": metadata}}}
    ]


def test_patches_of_other_managers_are_not_changed():
    other = {"manager": "example.com/other", "trainingRuntimeSpec": {}}
    job_spec = {"spec": {"runtimePatches": [other]}}
    RuntimePatch()(job_spec, None, EveryBackend)
    assert job_spec["spec"]["runtimePatches"] == [other, {"manager": MANAGER}]


def test_a_value_that_is_not_a_patch_is_refused():
    with pytest.raises(ValueError, match="training_runtime_spec must be a TrainingRuntimeSpecPatch, got dict"):
        RuntimePatch({"template": {}})
