"""Differences between a live and a desired runtime, and the patch between them."""

from __future__ import annotations

import copy

import pytest

from trainer_core.runtime_admin import runtime_builder
from trainer_core.runtime_admin.diff import Change, build_patch, list_changes
from trainer_core.runtime_admin.runtime_builder import (
    Coscheduling,
    InitializerParameters,
    PodParameters,
    RuntimeParameters,
    Volcano,
)

SPEC = "spec.template.spec"
CONTAINER = f"{SPEC}.replicatedJobs[node].template.spec.template.spec.containers[node]"


def torch(**settings):
    return runtime_builder.build_torch_runtime(RuntimeParameters("mine", **settings))


def with_steps():
    return runtime_builder.add_initializers(torch(), dataset=InitializerParameters(), model=InitializerParameters())


def live(runtime):
    """Return the runtime with the metadata and defaults that a server adds."""
    found = copy.deepcopy(runtime)
    found["metadata"].update(
        uid="u",
        resourceVersion="7",
        generation=2,
        creationTimestamp="2026-01-01T00:00:00Z",
        managedFields=[{"manager": "kubectl"}],
    )
    found["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    for job in found["spec"]["template"]["spec"]["replicatedJobs"]:
        job.update(groupName="default", replicas=1)
    return found


def merged(target, changed):
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(changed, dict):
        return changed
    kept = {key: value for key, value in (target if isinstance(target, dict) else {}).items() if key not in changed}
    return {**kept, **{k: merged((target or {}).get(k), v) for k, v in changed.items() if v is not None}}


def replicated(runtime, index, **fields):
    runtime["spec"]["template"]["spec"]["replicatedJobs"][index].update(fields)
    return runtime


def spec(runtime, **fields):
    runtime["spec"]["template"]["spec"].update(fields)
    return runtime


@pytest.mark.parametrize(
    "runtime",
    [torch(), torch(gang=Coscheduling()), with_steps(), runtime_builder.build_mlx_runtime(RuntimeParameters("m"))],
)
def test_fields_added_by_the_server_are_no_change(runtime):
    assert list_changes(live(runtime), runtime) == []
    assert build_patch(live(runtime), runtime) == {}


def test_defaults_in_policies_and_pods_are_no_change():
    wanted = runtime_builder.build_torch_runtime(
        RuntimeParameters("mine", pod=PodParameters(volumes=[{"name": "a", "configMap": {}}]))
    )
    wanted["spec"]["mlPolicy"] = {"mpi": {}}
    there = live(wanted)
    there["spec"]["mlPolicy"]["mpi"] = {"mpiImplementation": "OpenMPI", "numProcPerNode": 1}
    node = there["spec"]["template"]["spec"]["replicatedJobs"][0]
    node["template"]["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = ""

    assert list_changes(there, wanted) == []


def test_empty_metadata_of_a_template_is_no_change():
    there = live(torch())
    there["spec"]["template"]["metadata"] = {"creationTimestamp": None}

    assert list_changes(there, torch()) == []
    assert len(list_changes(there, torch(gang=Volcano(queue="q")))) == 2


def test_quantities_are_compared_by_their_amount():
    there = live(torch(resources={"gpu": 2, "memory": "1Gi"}))
    container = there["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 2, "memory": "1024Mi"}

    assert list_changes(there, torch(resources={"gpu": 2, "memory": "1Gi"})) == []


def test_a_nested_change_has_its_full_path():
    assert list_changes(live(torch(image="a:1")), torch(image="a:2")) == [Change(f"{CONTAINER}.image", "a:1", "a:2")]


def test_an_added_and_a_removed_environment_variable_are_changes():
    found = list_changes(live(torch(env={"A": "1", "B": "2"})), torch(env={"B": "2", "C": "3"}))

    assert [(change.path.removeprefix(CONTAINER), change.before, change.after) for change in found] == [
        (".env[A]", {"name": "A", "value": "1"}, None),
        (".env[C]", None, {"name": "C", "value": "3"}),
    ]


def test_a_reordered_list_is_one_change():
    found = list_changes(live(torch(env={"A": "1", "B": "2"})), torch(env={"B": "2", "A": "1"}))

    assert [change.path for change in found] == [f"{CONTAINER}.env"]


def test_labels_of_other_clients_are_ignored():
    there = live(torch())
    there["metadata"]["labels"]["argocd.argoproj.io/instance"] = "platform"

    assert list_changes(there, torch(labels={"team": "a"})) == [Change("metadata.labels.team", None, "a")]
    assert build_patch(there, torch(labels={"team": "a"})) == {"metadata": {"labels": {"team": "a"}}}


FIXED = [
    ("network", {"publishNotReadyAddresses": True}, {"publishNotReadyAddresses": False}),
    ("successPolicy", {"operator": "All"}, {"operator": "Any"}),
    ("failurePolicy", {"maxRestarts": 1}, {"maxRestarts": 2}),
    ("startupPolicy", {"startupPolicyOrder": "AnyOrder"}, {"startupPolicyOrder": "InOrder"}),
    ("volumeClaimPolicies", [{"templates": []}], [{"templates": [{"metadata": {"name": "a"}}]}]),
]


@pytest.mark.parametrize(("field", "before", "after"), FIXED, ids=[case[0] for case in FIXED])
def test_a_change_of_an_immutable_field_is_fixed(field, before, after):
    (change,) = list_changes(live(spec(torch(), **{field: before})), spec(torch(), **{field: after}))

    assert change.fixed
    assert change.path.startswith(f"{SPEC}.{field}")


def test_a_change_of_depends_on_is_fixed():
    wanted = replicated(with_steps(), 2, dependsOn=[{"name": "dataset-initializer", "status": "Complete"}])
    (change,) = list_changes(live(with_steps()), wanted)

    assert (change.path, change.fixed) == (f"{SPEC}.replicatedJobs[node].dependsOn[model-initializer]", True)


def test_adding_or_removing_an_immutable_field_is_not_fixed():
    with_policy, without = torch(), torch()
    del without["spec"]["template"]["spec"]["failurePolicy"]

    assert [change.fixed for change in list_changes(live(without), with_policy)] == [False]
    assert [change.fixed for change in list_changes(live(with_policy), without)] == [False]


PAIRS = [
    (torch(), torch(num_nodes=3)),
    (torch(env={"A": "1"}), torch(env={"B": "1"})),
    (torch(), runtime_builder.build_deepspeed_runtime(RuntimeParameters("mine"))),
    (with_steps(), torch()),
    (torch(gang=Coscheduling(5)), torch()),
]


@pytest.mark.parametrize(("before", "after"), [*PAIRS, *[(after, before) for before, after in PAIRS]])
def test_the_patch_converts_the_live_runtime_to_the_desired_one(before, after):
    result = merged(live(before), build_patch(live(before), after))

    assert list_changes(result, after) == []
    assert result["spec"].keys() == after["spec"].keys()


def test_a_patch_contains_only_changes():
    assert build_patch(live(torch()), torch(num_nodes=2)) == {"spec": {"mlPolicy": {"numNodes": 2}}}
