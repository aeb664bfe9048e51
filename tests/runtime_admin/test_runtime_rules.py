"""Rules of runtimes: one violation per test, and the runtimes of Trainer have no errors."""

from __future__ import annotations

import copy
import json
import re

import pytest
from fake_cluster import crds
from hypothesis import given, strategies as st

from trainer_core.runtime_admin import runtime_builder
from trainer_core.runtime_admin.accessors import list_replicated_jobs
from trainer_core.runtime_admin.diagnostics import ERROR, WARNING
from trainer_core.runtime_admin.runtime_builder import (
    Coscheduling,
    InitializerParameters,
    RuntimeParameters,
    StorageParameters,
)
from trainer_core.runtime_admin.validate import validate_runtime

TEMPLATE = "spec.template.spec"
CONTAINER = f"{TEMPLATE}.replicatedJobs.0.template.spec.template.spec.containers.0"
STEPS = {"dataset": InitializerParameters(), "model": InitializerParameters()}


def torch(**settings):
    return runtime_builder.build_torch_runtime(RuntimeParameters("mine", **settings))


def with_steps(**storage):
    return runtime_builder.add_initializers(torch(), **STEPS, storage=StorageParameters(**storage))


def deepspeed():
    return runtime_builder.build_deepspeed_runtime(RuntimeParameters("mine"))


def env_injection(*containers, job="node"):
    runtime = torch()
    pods = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pods["initContainers"] = [{"name": "warm-up", "image": "i"}]
    target = {"jobName": job, "containerNames": list(containers)}
    runtime["spec"]["mlPolicy"]["torch"] = {"envInjection": {"targets": [target]}}
    return runtime


def changed(runtime, path, value):
    """Return a copy with the value at a path such as ``spec>replicatedJobs>0>name`` set; None removes it."""
    *way, last = [int(key) if key.isdigit() else key for key in path.split(">")]
    place = runtime
    for key in way:
        place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return runtime


def beside(runtime, job):
    """Append a replicated job."""
    runtime["spec"]["template"]["spec"]["replicatedJobs"].append(job)
    return runtime


JOBS = "spec>template>spec>replicatedJobs"
NODE = f"{JOBS}>0"
LAST = f"{JOBS}>2"
POD = "template>spec>template>spec"
LABELS = "template>metadata>labels"
CLAIMS = "spec>template>spec>volumeClaimPolicies"
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
CLAIM = {"metadata": {"name": "initializer"}}

# Each violates one rule: rule, severity, runtime, path, part of the message.
INVALID = [
    ("shape", ERROR, ["no mapping"], "runtime", "must be a mapping, got list"),
    ("shape", ERROR, changed(torch(), NODE, "node"), f"{TEMPLATE}.replicatedJobs[0]", "must be a mapping"),
    ("shape", ERROR, changed(torch(), JOBS, {"node": {}}), f"{TEMPLATE}.replicatedJobs", "must be a list"),
    ("shape", ERROR, changed(torch(), "spec>mlPolicy>numNodes", "2"), "spec.mlPolicy.numNodes", "an integer"),
    ("shape", ERROR, changed(torch(), "spec>mlPolicy>numNodes", True), "spec.mlPolicy.numNodes", "an integer"),
    ("shape", ERROR, changed(torch(), "metadata>name", 7), "metadata.name", "must be a string"),
    ("V1", ERROR, changed(torch(), "apiVersion", "kubeflow.org/v2alpha1"), "apiVersion", "trainer.kubeflow.org/v1"),
    ("V1", ERROR, changed(torch(), "kind", "Runtime"), "kind", "ClusterTrainingRuntime or TrainingRuntime"),
    ("name", ERROR, changed(torch(), "metadata>name", "My_Runtime"), "metadata.name", "'My_Runtime'"),
    ("name", ERROR, changed(torch(), "metadata>name", None), "metadata.name", "got None"),
    ("name", ERROR, changed(torch(), "metadata>namespace", "team"), "metadata.namespace", "has no namespace"),
    ("name", ERROR, changed(torch(namespace="a"), "metadata>namespace", "a.b"), "metadata.namespace", "'a.b'"),
    ("labels", ERROR, changed(torch(), "metadata>labels>a b", "c"), "metadata.labels", "is not a label key"),
    ("labels", ERROR, changed(torch(), "metadata>annotations>a", 1), "metadata.annotations", "must be a string"),
    (
        "labels",
        ERROR,
        changed(torch(), "spec>template>metadata>labels>a", "b c"),
        "spec.template.metadata.labels",
        "'b c'",
    ),
    (
        "labels",
        ERROR,
        changed(torch(), f"{NODE}>{LABELS}>a", "b c"),
        f"{TEMPLATE}.replicatedJobs[node].template.metadata.labels",
        "'b c'",
    ),
    (
        "labels",
        ERROR,
        changed(torch(), f"{NODE}>template>spec>template>metadata>labels>a", "b c"),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.template.metadata.labels",
        "'b c'",
    ),
    (
        "labels",
        WARNING,
        changed(torch(), "metadata>labels>trainer.kubeflow.org/webhook-validation", "disabled"),
        "metadata.labels",
        "turns off the validation webhook",
    ),
    (
        "V2",
        ERROR,
        changed(torch(), "spec>replicas", 2),
        "spec.replicas",
        "known fields: mlPolicy",
    ),
    ("V2", ERROR, changed(torch(), JOBS, []), f"{TEMPLATE}.replicatedJobs", "missing or empty"),
    (
        "V2",
        ERROR,
        changed(torch(), f"{NODE}>name", "0-node"),
        f"{TEMPLATE}.replicatedJobs[0-node].name",
        "start with a letter",
    ),
    (
        "V2",
        ERROR,
        beside(with_steps(), {"name": "node"}),
        f"{TEMPLATE}.replicatedJobs",
        "2 jobs named 'node'",
    ),
    ("V3", ERROR, changed(torch(), "spec>mlPolicy>jax", {}), "spec.mlPolicy", "has torch, jax"),
    ("V3", ERROR, changed(torch(), "spec>mlPolicy>numNodes", 0), "spec.mlPolicy.numNodes", "at least 1, got 0"),
    ("V3", ERROR, changed(torch(), "spec>mlPolicy>pytorch", {}), "spec.mlPolicy.pytorch", "is an unknown field"),
    (
        "V3",
        ERROR,
        changed(torch(), "spec>mlPolicy>torch>numProcPerNode", "auto"),
        "spec.mlPolicy.torch.numProcPerNode",
        "removed in Trainer 2.2",
    ),
    (
        "V3",
        ERROR,
        changed(torch(), "spec>mlPolicy>torch>elasticPolicy", {}),
        "spec.mlPolicy.torch.elasticPolicy",
        "removed in Trainer 2.2",
    ),
    (
        "V3",
        ERROR,
        changed(deepspeed(), "spec>mlPolicy>mpi>numProcPerNode", "auto"),
        "spec.mlPolicy.mpi.numProcPerNode",
        "integer",
    ),
    (
        "V3",
        ERROR,
        changed(deepspeed(), "spec>mlPolicy>mpi>mpiImplementation", "MPICH"),
        "spec.mlPolicy.mpi.mpiImplementation",
        "OpenMPI",
    ),
    (
        "V3",
        ERROR,
        changed(torch(gang=Coscheduling()), "spec>podGroupPolicy>volcano", {}),
        "spec.podGroupPolicy",
        "coscheduling, volcano",
    ),
    (
        "V3",
        ERROR,
        changed(torch(gang=Coscheduling()), "spec>podGroupPolicy>coscheduling>timeout", 5),
        "spec.podGroupPolicy.coscheduling.timeout",
        "scheduleTimeoutSeconds",
    ),
    (
        "V3",
        WARNING,
        runtime_builder.add_initializers(torch(gang=Coscheduling()), **STEPS),
        "spec.podGroupPolicy",
        "may never start",
    ),
    (
        "V4",
        ERROR,
        changed(torch(), f"{NODE}>template>metadata", None),
        f"{TEMPLATE}.replicatedJobs",
        "is ignored",
    ),
    (
        "V4",
        ERROR,
        changed(torch(), f"{NODE}>{POD}>containers>0>name", "trainer"),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.template.spec.containers",
        "named 'node'",
    ),
    (
        "V4",
        WARNING,
        beside(torch(), {**list_replicated_jobs(torch())[0].raw, "name": "other"}),
        f"{TEMPLATE}.replicatedJobs",
        "node, other",
    ),
    (
        "V5",
        WARNING,
        changed(beside(torch(), {"name": "evaluator"}), f"{JOBS}>1>{LABELS}>{ANCESTOR}", "evaluator"),
        f"{TEMPLATE}.replicatedJobs[evaluator].template.metadata.labels",
        "'evaluator' is ignored",
    ),
    (
        "V6",
        ERROR,
        changed(torch(), f"{NODE}>replicas", 2),
        f"{TEMPLATE}.replicatedJobs[node].replicas",
        "mlPolicy.numNodes",
    ),
    (
        "V6",
        ERROR,
        changed(with_steps(), f"{NODE}>{POD}>containers>0>name", "fetch"),
        f"{TEMPLATE}.replicatedJobs[dataset-initializer].template.spec.template.spec.containers",
        "requires a container of that name",
    ),
    (
        "V7",
        WARNING,
        changed(with_steps(), f"{NODE}>{POD}>containers>0>volumeMounts", None),
        f"{TEMPLATE}.replicatedJobs[dataset-initializer].template.spec.template.spec",
        "Trainer 2.3 refuses TrainJobs",
    ),
    (
        "V7",
        WARNING,
        changed(with_steps(), f"{LAST}>{POD}>containers>0>volumeMounts", None),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.template.spec.containers[node].volumeMounts",
        "cannot read the data of the initializers",
    ),
    (
        "V7",
        ERROR,
        changed(with_steps(claim="data"), f"{NODE}>{POD}>volumes", None),
        f"{TEMPLATE}.replicatedJobs[dataset-initializer].template.spec.template.spec",
        "neither a volume of the pod nor a claim template",
    ),
    (
        "V7",
        WARNING,
        changed(with_steps(), "spec>mlPolicy>numNodes", 2),
        f"{TEMPLATE}.volumeClaimPolicies[initializer].spec.accessModes",
        "use ReadWriteMany",
    ),
    (
        "V8",
        ERROR,
        changed(torch(), f"{NODE}>dependsOn", [{"name": "node", "status": "Complete"}]),
        f"{TEMPLATE}.replicatedJobs[node].dependsOn",
        "the first job cannot have dependencies",
    ),
    (
        "V8",
        ERROR,
        changed(with_steps(), f"{JOBS}>1>dependsOn", [{"name": "dataset-initializer", "status": "Running"}]),
        f"{TEMPLATE}.replicatedJobs[model-initializer].dependsOn",
        "Ready or Complete, got 'Running'",
    ),
    (
        "V8",
        ERROR,
        changed(with_steps(), f"{JOBS}>1>dependsOn", [{"name": "node", "status": "Complete"}]),
        f"{TEMPLATE}.replicatedJobs[model-initializer].dependsOn",
        "'node' is not an earlier job",
    ),
    (
        "V8",
        ERROR,
        changed(
            with_steps(),
            f"{JOBS}>1>dependsOn",
            [{"name": "dataset-initializer", "status": "Complete"}] * 2,
        ),
        f"{TEMPLATE}.replicatedJobs[model-initializer].dependsOn",
        "each once",
    ),
    (
        "V8",
        ERROR,
        changed(with_steps(), "spec>template>spec>startupPolicy", {"startupPolicyOrder": "InOrder"}),
        f"{TEMPLATE}.startupPolicy",
        "cannot be combined with dependsOn",
    ),
    (
        "V8",
        WARNING,
        changed(with_steps(), f"{LAST}>dependsOn>1>status", "Ready"),
        f"{TEMPLATE}.replicatedJobs[node]",
        "does not wait for 'model-initializer'",
    ),
    (
        "V9",
        ERROR,
        changed(deepspeed(), f"{NODE}>{POD}>containers>0>name", "server"),
        f"{TEMPLATE}.replicatedJobs[node]",
        "mpi requires the job 'node'",
    ),
    (
        "V9",
        ERROR,
        changed(deepspeed(), "spec>template>spec>successPolicy", None),
        f"{TEMPLATE}.successPolicy",
        "never exit",
    ),
    (
        "V9",
        WARNING,
        changed(deepspeed(), "spec>template>spec>network", None),
        f"{TEMPLATE}.network.publishNotReadyAddresses",
        "should be true",
    ),
    (
        "V9",
        WARNING,
        changed(deepspeed(), f"{JOBS}>1>dependsOn", None),
        f"{TEMPLATE}.replicatedJobs[launcher].dependsOn",
        "should wait for the nodes",
    ),
    (
        "V9",
        WARNING,
        changed(deepspeed(), f"{NODE}>{POD}>containers>0>readinessProbe", None),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.template.spec.containers[node]",
        "no readinessProbe",
    ),
    (
        "V10",
        ERROR,
        changed(with_steps(), CLAIMS, [{"templates": [CLAIM, CLAIM]}]),
        f"{TEMPLATE}.volumeClaimPolicies",
        "2 templates are named 'initializer'",
    ),
    (
        "V10",
        ERROR,
        changed(torch(), CLAIMS, [{"templates": [{"metadata": {"name": "scratch"}}]}]),
        f"{TEMPLATE}.volumeClaimPolicies[scratch]",
        "no container mounts 'scratch'",
    ),
    (
        "V10",
        ERROR,
        changed(with_steps(), f"{LAST}>{POD}>volumes", [{"name": "initializer", "emptyDir": {}}]),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.template.spec.volumes[initializer]",
        "also a claim template of volumeClaimPolicies",
    ),
    (
        "V10",
        ERROR,
        changed(with_steps(), f"{CLAIMS}>0>templates>0>metadata>namespace", "team"),
        f"{TEMPLATE}.volumeClaimPolicies[initializer].metadata.namespace",
        "remove the field",
    ),
    (
        "V11",
        ERROR,
        env_injection("warm-up", job="other"),
        "spec.mlPolicy.torch.envInjection.targets[other]",
        "not exist",
    ),
    (
        "V11",
        ERROR,
        env_injection("node"),
        "spec.mlPolicy.torch.envInjection.targets[node]",
        "always gets the environment",
    ),
    (
        "V11",
        ERROR,
        env_injection("sidecar"),
        "spec.mlPolicy.torch.envInjection.targets[node]",
        "no container",
    ),
    (
        "V12",
        WARNING,
        changed(torch(), f"{NODE}>template>spec>parallelism", 2),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.parallelism",
        "overwritten by the number of nodes",
    ),
    (
        "V12",
        WARNING,
        changed(deepspeed(), f"{NODE}>template>spec>completions", 2),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.completions",
        "overwritten by the number of nodes",
    ),
    (
        "V12",
        ERROR,
        changed(torch(), f"{NODE}>template>spec>completionMode", "NonIndexed"),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.completionMode",
        "must be Indexed",
    ),
    (
        "V12",
        ERROR,
        changed(torch(), f"{NODE}>{POD}>restartPolicy", "Always"),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.template.spec.restartPolicy",
        "OnFailure or Never",
    ),
    (
        "V13",
        ERROR,
        torch(env={"PET_NNODES": "2"}),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.template.spec.containers[node].env[PET_NNODES]",
        "is overwritten by Trainer",
    ),
    (
        "V14",
        WARNING,
        changed(torch(), "metadata>labels", None),
        "metadata.labels",
        "SDK ignores the runtime",
    ),
    (
        "V16",
        ERROR,
        changed(torch(), f"{CONTAINER.replace('.', '>')}>imge", "torch:1"),
        f"{TEMPLATE}.replicatedJobs[node].template.spec.template.spec.containers[node].imge",
        "is unknown; use image",
    ),
    (
        "V15",
        ERROR,
        changed(
            runtime_builder.build_torchtune_runtime(RuntimeParameters("torchtune-llama3.2-1b")),
            "metadata>name",
            "torchtune-llama3.2",
        ),
        "metadata.name",
        "Trainer reads the model from the name",
    ),
]


@pytest.mark.parametrize(
    ("rule", "severity", "runtime", "path", "words"), INVALID, ids=[f"{case[0]}-{case[3]}" for case in INVALID]
)
def test_a_violated_rule_is_reported_once_with_its_path(rule, severity, runtime, path, words):
    (problem,) = validate_runtime(runtime)

    assert (problem.rule, problem.severity, problem.path) == (rule, severity, path)
    assert words in problem.message


def test_every_rule_has_a_test_case():
    assert {rule for rule, *_ in INVALID} == {"shape", "name", "labels", *(f"V{number}" for number in range(1, 17))}


def test_an_empty_runtime_violates_the_required_field_rules():
    found = {finding.rule for finding in validate_runtime({"apiVersion": "trainer.kubeflow.org/v1alpha1", "spec": {}})}

    assert found == {"V1", "name", "V2", "V14"}


def test_mpi_without_a_launcher_is_reported_once():
    runtime = changed(deepspeed(), f"{JOBS}>1", None)
    runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"labels": {ANCESTOR: "trainer"}}

    assert [finding.path for finding in validate_runtime(runtime)] == [f"{TEMPLATE}.replicatedJobs[launcher]"]


def test_an_initializer_of_another_name_is_an_error():
    runtime = changed(with_steps(), f"{NODE}>name", "fetch")
    runtime["spec"]["template"]["spec"]["replicatedJobs"][2]["dependsOn"][0]["name"] = "fetch"

    assert "V7" in {finding.rule for finding in validate_runtime(runtime) if finding.severity == ERROR}


def test_errors_come_before_warnings():
    runtime = changed(changed(torch(), "metadata>labels", None), "spec>mlPolicy>numNodes", 0)

    assert [finding.severity for finding in validate_runtime(runtime)] == [ERROR, WARNING]


def test_a_launcher_waits_for_initializers_through_the_nodes():
    assert validate_runtime(runtime_builder.add_initializers(deepspeed(), **STEPS)) == []


def test_the_runtime_of_the_upstream_guide_has_only_the_volume_warning():
    """The example of the guide: dataset, then model, then training."""
    runtime = with_steps()
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[1]["dependsOn"] = [{"name": "dataset-initializer", "status": "Complete"}]
    jobs[2]["dependsOn"] = [{"name": "model-initializer", "status": "Complete"}]
    del runtime["spec"]["template"]["spec"]["volumeClaimPolicies"]
    for job in jobs:
        del job["template"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]

    assert {(finding.rule, finding.severity) for finding in validate_runtime(runtime)} == {("V7", WARNING)}


# Warnings of Trainer's runtimes: two of them have the label that turns off the validation webhook. The data cache
# writes nothing to disk and so has no volume, although Trainer 2.3 requires one.
KNOWN = {"flux-distributed": ["labels"], "torch-distributed-with-cache": ["labels", "V7"]}


def test_the_runtimes_of_trainer_have_only_known_warnings():
    found = {name: validate_runtime(runtime) for name, runtime in crds.stock_runtimes().items()}

    assert len(found) == 10
    assert {name: [each.rule for each in each] for name, each in found.items() if each} == KNOWN
    assert {each.severity for all_of_it in found.values() for each in all_of_it} == {WARNING}


def test_a_diagnostic_is_one_line():
    (problem,) = validate_runtime(changed(torch(), "metadata>labels", None))

    assert re.fullmatch(r"warning V14 metadata\.labels: the label .+", str(problem))
    assert json.loads(json.dumps(problem.to_dict()))["rule"] == "V14"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


@given(data=st.data(), junk=JSON)
def test_arbitrary_values_never_raise_an_exception(data, junk):
    runtime = copy.deepcopy(data.draw(st.sampled_from([torch(), with_steps(), deepspeed(), env_injection("node")])))
    *way, last = data.draw(st.sampled_from([path for path in places(runtime) if path]))
    place = runtime
    for key in way:
        place = place[key]
    place[last] = junk

    assert isinstance(validate_runtime(runtime), list)
