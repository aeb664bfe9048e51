"""How a runtime in a file differs from the live one, and the patch that makes it so."""

from __future__ import annotations

import copy

import pytest

from trainer_core.admin import build
from trainer_core.admin.blueprint import Blueprint, Coscheduling, Initializer, Pod, Volcano
from trainer_core.admin.diff import Change, changes, patch

SPEC = "spec.template.spec"
CONTAINER = f"{SPEC}.replicatedJobs[node].template.spec.template.spec.containers[node]"


def torch(**settings):
    return build.torch(Blueprint("mine", **settings))


def with_steps():
    return build.with_initializers(torch(), dataset=Initializer(), model=Initializer())


def live(runtime):
    """The runtime as a server returns it: with its metadata and defaults."""
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
    """RFC 7386."""
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


@pytest.mark.parametrize("runtime", [torch(), torch(gang=Coscheduling()), with_steps(), build.mlx(Blueprint("m"))])
def test_what_the_server_adds_is_no_difference(runtime):
    assert changes(live(runtime), runtime) == []
    assert patch(live(runtime), runtime) == {}


def test_defaults_inside_policies_and_pods_are_no_difference():
    wanted = build.torch(Blueprint("mine", pod=Pod(volumes=[{"name": "a", "configMap": {}}])))
    wanted["spec"]["mlPolicy"] = {"mpi": {}}
    there = live(wanted)
    there["spec"]["mlPolicy"]["mpi"] = {"mpiImplementation": "OpenMPI", "numProcPerNode": 1}
    node = there["spec"]["template"]["spec"]["replicatedJobs"][0]
    node["template"]["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = ""

    assert changes(there, wanted) == []


def test_empty_metadata_of_a_template_is_no_difference():
    there = live(torch())
    there["spec"]["template"]["metadata"] = {"creationTimestamp": None}

    assert changes(there, torch()) == []
    assert len(changes(there, torch(gang=Volcano(queue="q")))) == 2


def test_quantities_are_compared_by_their_amount():
    there = live(torch(resources={"gpu": 2, "memory": "1Gi"}))
    container = there["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 2, "memory": "1024Mi"}

    assert changes(there, torch(resources={"gpu": 2, "memory": "1Gi"})) == []


def test_a_change_deep_inside_is_named_by_its_path():
    assert changes(live(torch(image="a:1")), torch(image="a:2")) == [Change(f"{CONTAINER}.image", "a:1", "a:2")]


def test_an_added_and_a_removed_environment_variable_are_changes():
    found = changes(live(torch(env={"A": "1", "B": "2"})), torch(env={"B": "2", "C": "3"}))

    assert [(change.path.removeprefix(CONTAINER), change.before, change.after) for change in found] == [
        (".env[A]", {"name": "A", "value": "1"}, None),
        (".env[C]", None, {"name": "C", "value": "3"}),
    ]


def test_another_order_of_a_list_is_one_change():
    found = changes(live(torch(env={"A": "1", "B": "2"})), torch(env={"B": "2", "A": "1"}))

    assert [change.path for change in found] == [f"{CONTAINER}.env"]


def test_labels_of_others_are_left_alone():
    there = live(torch())
    there["metadata"]["labels"]["argocd.argoproj.io/instance"] = "platform"

    assert changes(there, torch(labels={"team": "a"})) == [Change("metadata.labels.team", None, "a")]
    assert patch(there, torch(labels={"team": "a"})) == {"metadata": {"labels": {"team": "a"}}}


FIXED = [
    ("network", {"publishNotReadyAddresses": True}, {"publishNotReadyAddresses": False}),
    ("successPolicy", {"operator": "All"}, {"operator": "Any"}),
    ("failurePolicy", {"maxRestarts": 1}, {"maxRestarts": 2}),
    ("startupPolicy", {"startupPolicyOrder": "AnyOrder"}, {"startupPolicyOrder": "InOrder"}),
    ("volumeClaimPolicies", [{"templates": []}], [{"templates": [{"metadata": {"name": "a"}}]}]),
]


@pytest.mark.parametrize(("field", "before", "after"), FIXED, ids=[case[0] for case in FIXED])
def test_what_is_fixed_once_it_is_set_is_said_to_be(field, before, after):
    (change,) = changes(live(spec(torch(), **{field: before})), spec(torch(), **{field: after}))

    assert change.fixed
    assert change.path.startswith(f"{SPEC}.{field}")


def test_what_a_job_waits_for_is_fixed():
    wanted = replicated(with_steps(), 2, dependsOn=[{"name": "dataset-initializer", "status": "Complete"}])
    (change,) = changes(live(with_steps()), wanted)

    assert (change.path, change.fixed) == (f"{SPEC}.replicatedJobs[node].dependsOn[model-initializer]", True)


def test_adding_or_removing_such_a_field_as_a_whole_is_allowed_by_the_server():
    with_policy = spec(torch(), failurePolicy={"maxRestarts": 1})

    assert [change.fixed for change in changes(live(torch()), with_policy)] == [False]
    assert [change.fixed for change in changes(live(with_policy), torch())] == [False]


PAIRS = [
    (torch(), torch(num_nodes=3)),
    (torch(env={"A": "1"}), torch(env={"B": "1"})),
    (torch(), build.deepspeed(Blueprint("mine"))),
    (with_steps(), torch()),
    (torch(gang=Coscheduling(5)), torch()),
]


@pytest.mark.parametrize(("before", "after"), [*PAIRS, *[(after, before) for before, after in PAIRS]])
def test_the_patch_makes_the_live_runtime_the_wanted_one(before, after):
    result = merged(live(before), patch(live(before), after))

    assert changes(result, after) == []
    assert result["spec"].keys() == after["spec"].keys()


def test_a_patch_names_only_what_changes():
    assert patch(live(torch()), torch(num_nodes=2)) == {"spec": {"mlPolicy": {"numNodes": 2}}}
