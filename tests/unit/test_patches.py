"""The RuntimePatch tree: its spelling for Kubernetes, what it refuses, and how two patches become one."""

from __future__ import annotations

import dataclasses
from typing import get_args, get_type_hints

import pydantic
import pytest
from fake_cluster import crds

from trainer_core.definition.options.kubernetes_models import to_plain_data
from trainer_core.model.patches import (
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    TrainingRuntimeSpecPatch,
    merge_patches,
)


def mount(**changed):
    return [{"name": "data", "mountPath": "/data", **changed}]


def test_a_patch_uses_the_field_names_of_kubernetes():
    pods = PodSpecPatch(
        service_account_name="trainer",
        volumes=[{"name": "data", "emptyDir": {}}],
        init_containers=[ContainerPatch("prepare", env=[{"name": "A", "value": "1"}])],
        containers=[ContainerPatch("node", volume_mounts=mount(), security_context={"runAsUser": 1000})],
        image_pull_secrets=[{"name": "registry"}],
        node_selector={"pool": "gpu"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        scheduling_gates=[{"name": "example.com/gate"}],
        termination_grace_period_seconds=0,
    )
    job = JobTemplatePatch({"labels": {"a": "1"}}, JobSpecPatch(PodTemplatePatch({"annotations": {"b": "2"}}, pods)))
    jobset = JobSetTemplatePatch(spec=JobSetSpecPatch([ReplicatedJobPatch("node", job)]))
    pod_spec = {
        "serviceAccountName": "trainer",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "initContainers": [{"name": "prepare", "env": [{"name": "A", "value": "1"}]}],
        "containers": [{"name": "node", "volumeMounts": mount(), "securityContext": {"runAsUser": 1000}}],
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "schedulingGates": [{"name": "example.com/gate"}],
        "terminationGracePeriodSeconds": 0,
    }
    pod_template = {"metadata": {"annotations": {"b": "2"}}, "spec": pod_spec}
    job_template = {"metadata": {"labels": {"a": "1"}}, "spec": {"template": pod_template}}
    assert TrainingRuntimeSpecPatch(jobset).to_dict() == {
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job_template}]}}
    }


def test_unset_and_empty_fields_are_left_out():
    assert PodSpecPatch(volumes=[], node_selector={}, containers=None).to_dict() == {}


def test_the_values_of_the_caller_are_neither_shared_nor_changed():
    given = [{"name": "data", "emptyDir": {}}]
    PodSpecPatch(volumes=given).to_dict()["volumes"][0]["emptyDir"]["medium"] = "Memory"
    assert given == [{"name": "data", "emptyDir": {}}]


@pytest.mark.parametrize("name", ["", " ", None, 3])
def test_a_container_without_a_name_is_refused(name):
    with pytest.raises(ValueError, match="Container name must be a non-empty string"):
        ContainerPatch(name)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "A", "value": ""},
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ],
)
def test_an_environment_variable_has_a_value_or_a_source(entry):
    assert ContainerPatch("launcher", env=[entry]).to_dict()["env"] == [entry]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"name": "A", "value": "1"}, "env must be a list of dictionaries"),
        (["A=1"], "Each env entry must be a dictionary"),
        ([{"value": "1"}], "Each env entry must have a 'name' key"),
        ([{"name": "", "value": "1"}], "env 'name' must be a non-empty string"),
        ([{"name": "A"}], "Each env entry must have either 'value' or 'valueFrom' key"),
        ([{"name": "A", "value": "1", "valueFrom": {}}], "Each env entry must have either 'value' or 'valueFrom' key"),
        ([{"name": "A", "value": 1}], "env 'value' of 'A' must be a string, got int"),
        ([{"name": "A", "valueFrom": "s"}], "env 'valueFrom' must be a dictionary"),
        (
            [{"name": "A", "valueFrom": {"secret": {}}}],
            "env 'valueFrom' must contain one of: configMapKeyRef, secretKeyRef, fieldRef, resourceFieldRef",
        ),
    ],
)
def test_an_invalid_environment_variable_is_refused(env, message):
    with pytest.raises(ValueError, match=message):
        ContainerPatch("launcher", env=env)


@pytest.mark.parametrize(
    ("mounts", "message"),
    [
        (mount()[0], "volume_mounts must be a list of dictionaries"),
        (["/data"], "Each volume_mounts entry must be a dictionary"),
        ([{"mountPath": "/data"}], "Each volume_mounts entry must have a 'name' key"),
        (mount(name=" "), "volume_mounts 'name' must be a non-empty string"),
        ([{"name": "data"}], "Each volume_mounts entry must have a 'mountPath' key"),
        (mount(mountPath=""), "volume_mounts 'mountPath' must be a non-empty string"),
        (mount(mountPath=3), "volume_mounts 'mountPath' must be a non-empty string"),
        (mount(mountPath="data"), r"volume_mounts 'mountPath' must be an absolute path \(start with /\): data"),
    ],
)
def test_an_invalid_volume_mount_is_refused(mounts, message):
    with pytest.raises(ValueError, match=message):
        ContainerPatch("node", volume_mounts=mounts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReplicatedJobPatch(""), "ReplicatedJobPatch name must be a non-empty string"),
        (lambda: ReplicatedJobPatch("node", {"spec": {}}), "template must be a JobTemplatePatch, got dict"),
        (lambda: JobSetSpecPatch(ReplicatedJobPatch("node")), "replicated_jobs must be a list of ReplicatedJobPatch"),
        (lambda: JobSetSpecPatch(["node"]), "each of replicated_jobs must be a ReplicatedJobPatch, got str"),
        (lambda: JobSetSpecPatch([ReplicatedJobPatch("node")] * 2), "replicated_jobs names node twice"),
        (
            lambda: JobSetTemplatePatch({"name": "x"}),
            "metadata name cannot be patched; only labels and annotations can",
        ),
        (lambda: JobTemplatePatch("x"), "metadata must be a dict"),
        (lambda: PodTemplatePatch({"labels": {"a b": "x"}}), "metadata labels key 'a b' is not a label key"),
        (lambda: PodTemplatePatch(spec=ContainerPatch("node")), "spec must be a PodSpecPatch, got ContainerPatch"),
        (lambda: PodSpecPatch(service_account_name=""), "service_account_name must be a non-empty string"),
        (lambda: PodSpecPatch(volumes=[{"emptyDir": {}}]), "Each volumes entry must have a 'name' key"),
        (lambda: PodSpecPatch(tolerations={"key": "gpu"}), "tolerations must be a list of dictionaries"),
        (lambda: PodSpecPatch(affinity=[1]), "affinity must be a dict with Kubernetes' field names, got list"),
        (lambda: PodSpecPatch(node_selector={"pool": 1}), r"node_selector\['pool'\] must be a string"),
        (lambda: PodSpecPatch(containers=[{"name": "node"}]), "each of containers must be a ContainerPatch, got dict"),
    ],
)
def test_a_patch_of_the_wrong_type_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_dicts_are_merged_key_by_key():
    assert merge_patches({"a": {"x": 1, "y": 1}, "b": 1}, {"a": {"y": 2}, "c": 3}) == {
        "a": {"x": 1, "y": 2},
        "b": 1,
        "c": 3,
    }


def test_lists_of_named_objects_are_merged_by_name_and_keep_their_order():
    base = {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}
    patch = {"containers": [{"name": "c"}, {"name": "a", "env": [{"name": "Y", "value": "2"}]}]}
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    assert merge_patches(base, patch) == {"containers": [{"name": "a", "env": env}, {"name": "b"}, {"name": "c"}]}


def test_other_lists_are_replaced():
    assert merge_patches({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}) == {
        "tolerations": [{"key": "b"}]
    }


def test_merging_changes_neither_patch():
    base, patch = {"a": {"x": 1}}, {"a": {"y": 2}}
    merge_patches(base, patch)
    assert (base, patch) == ({"a": {"x": 1}}, {"a": {"y": 2}})


# ---- against the real resource -------------------------------------------------------------------------------


#: Of the metadata of a template nothing else can be changed sensibly: names and namespaces are the controller's.
NOT_OURS = {"finalizers", "name", "namespace"}


@pytest.fixture(scope="module")
def patched_spec():
    """The schema of what a patch may hold."""
    spec = crds.schema("TrainJob")["properties"]["spec"]
    return spec["properties"]["runtimePatches"]["items"]["properties"]["trainingRuntimeSpec"]


def camel(name):
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def patch_class(hint):
    """The class of the tree that a field holds, by itself or in a list; None for a plain value."""
    inner = [each for part in get_args(hint) for each in (part, *get_args(part))]
    return next((each for each in inner if isinstance(each, type) and dataclasses.is_dataclass(each)), None)


def differences(schema, kind, path=""):
    """Where the tree and the schema do not have the same fields."""
    properties = schema.get("items", schema)["properties"]
    fields = {camel(name): patch_class(hint) for name, hint in get_type_hints(kind).items()}
    for name in sorted(properties.keys() ^ fields.keys()):
        yield f"{path}.{name}"
    for name in sorted(properties.keys() & fields.keys()):
        if fields[name] is not None:
            yield from differences(properties[name], fields[name], f"{path}.{name}")
        elif name == "metadata":
            unknown = properties[name]["properties"].keys() - {"labels", "annotations"} - NOT_OURS
            yield from (f"{path}.metadata.{each}" for each in sorted(unknown))


def test_the_patch_classes_have_exactly_the_patchable_fields_of_trainer(patched_spec):
    assert list(differences(patched_spec, TrainingRuntimeSpecPatch)) == []


def test_a_variable_accepts_every_source_of_the_api(patched_spec):
    found = patched_spec
    for name in ("template", "spec", "replicatedJobs", "template", "spec", "template", "spec", "containers", "env"):
        found = found["properties"][name]
        found = found.get("items", found)
    sources = found["properties"]["valueFrom"]["properties"]
    made = [ContainerPatch("node", env=[{"name": "A", "valueFrom": {source: {}}}]) for source in sources]

    assert len(made) == len(sources) > 3


def test_an_object_of_pydantic_becomes_plain_data_with_the_names_of_kubernetes():
    class Mount(pydantic.BaseModel):
        mount_path: str = pydantic.Field(alias="mountPath")
        sub_path: str | None = None

    assert to_plain_data({"mounts": [Mount(mountPath="/data")], "none": None}) == {"mounts": [{"mountPath": "/data"}]}
