"""The RuntimePatch tree: its spelling for Kubernetes, what it refuses, and how two patches become one."""

from __future__ import annotations

import pytest

from trainer_core.options.patches import (
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    TrainingRuntimeSpecPatch,
    merged,
)


def mount(**changed):
    return [{"name": "data", "mountPath": "/data", **changed}]


def test_a_whole_tree_has_the_spelling_of_kubernetes():
    pods = PodSpecPatch(
        service_account_name="trainer",
        volumes=[{"name": "data", "emptyDir": {}}],
        init_containers=[ContainerPatch("prepare", env=[{"name": "A", "value": "1"}])],
        containers=[ContainerPatch("node", volume_mounts=mount(), security_context={"runAsUser": 1000})],
        image_pull_secrets=[{"name": "registry"}],
        node_selector={"pool": "gpu"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        scheduling_gates=[{"name": "example.com/gate"}],
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
    }
    pod_template = {"metadata": {"annotations": {"b": "2"}}, "spec": pod_spec}
    job_template = {"metadata": {"labels": {"a": "1"}}, "spec": {"template": pod_template}}
    assert TrainingRuntimeSpecPatch(jobset).to_dict() == {
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job_template}]}}
    }


def test_what_is_not_set_or_empty_is_left_out():
    assert PodSpecPatch(volumes=[], node_selector={}, containers=None).to_dict() == {}


def test_what_a_user_gave_is_neither_shared_nor_changed():
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
        ([{"name": "A", "value": 1}], "env 'value' of A must be a text, got int"),
        ([{"name": "A", "valueFrom": "s"}], "env 'valueFrom' must be a dictionary"),
        (
            [{"name": "A", "valueFrom": {"secret": {}}}],
            "env 'valueFrom' must contain one of: configMapKeyRef, secretKeyRef, fieldRef, resourceFieldRef",
        ),
    ],
)
def test_an_environment_variable_that_kubernetes_would_not_take_is_refused(env, message):
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
def test_a_mount_that_kubernetes_would_not_take_is_refused(mounts, message):
    with pytest.raises(ValueError, match=message):
        ContainerPatch("node", volume_mounts=mounts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReplicatedJobPatch(""), "ReplicatedJobPatch name must be a non-empty text"),
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
        (lambda: PodSpecPatch(service_account_name=""), "service_account_name must be a non-empty text"),
        (lambda: PodSpecPatch(volumes=[{"emptyDir": {}}]), "Each volumes entry must have a 'name' key"),
        (lambda: PodSpecPatch(tolerations={"key": "gpu"}), "tolerations must be a list of dictionaries"),
        (lambda: PodSpecPatch(affinity=[1]), "affinity must be a dict in Kubernetes' spelling, got list"),
        (lambda: PodSpecPatch(node_selector={"pool": 1}), r"node_selector\['pool'\] must be a text"),
        (lambda: PodSpecPatch(containers=[{"name": "node"}]), "each of containers must be a ContainerPatch, got dict"),
    ],
)
def test_a_patch_of_the_wrong_kind_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_dicts_are_merged_key_by_key():
    assert merged({"a": {"x": 1, "y": 1}, "b": 1}, {"a": {"y": 2}, "c": 3}) == {"a": {"x": 1, "y": 2}, "b": 1, "c": 3}


def test_named_things_are_merged_by_name_in_their_first_order():
    base = {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}
    patch = {"containers": [{"name": "c"}, {"name": "a", "env": [{"name": "Y", "value": "2"}]}]}
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    assert merged(base, patch) == {"containers": [{"name": "a", "env": env}, {"name": "b"}, {"name": "c"}]}


def test_other_lists_are_replaced():
    assert merged({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}) == {"tolerations": [{"key": "b"}]}


def test_merging_leaves_both_patches_as_they_were():
    base, patch = {"a": {"x": 1}}, {"a": {"y": 2}}
    merged(base, patch)
    assert (base, patch) == ({"a": {"x": 1}}, {"a": {"y": 2}})
