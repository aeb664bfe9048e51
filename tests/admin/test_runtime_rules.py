"""Rules of runtimes: each is broken alone, and Trainer's own runtimes break none that matters."""

from __future__ import annotations

import copy
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.admin import build
from trainer_core.admin.blueprint import Blueprint, Coscheduling, Initializer, Storage
from trainer_core.admin.findings import ERROR, WARNING
from trainer_core.admin.raw import replicated_jobs
from trainer_core.admin.validate import findings

TEMPLATE = "spec.template.spec"
STEPS = {"dataset": Initializer(), "model": Initializer()}


def torch(**settings):
    return build.torch(Blueprint("mine", **settings))


def with_steps(**storage):
    return build.with_initializers(torch(), **STEPS, storage=Storage(**storage))


def deepspeed():
    return build.deepspeed(Blueprint("mine"))


def env_injection(*containers, job="node"):
    runtime = torch()
    pods = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pods["initContainers"] = [{"name": "warm-up", "image": "i"}]
    target = {"jobName": job, "containerNames": list(containers)}
    runtime["spec"]["mlPolicy"]["torch"] = {"envInjection": {"targets": [target]}}
    return runtime


def changed(runtime, path, value):
    """Set what lies at a path such as ``spec>replicatedJobs>0>name``; None removes it."""
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
    """Add a replicated job behind the others."""
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

# Each breaks one rule, once: rule, severity, the runtime, where, words of the message.
BROKEN = [
    ("shape", ERROR, ["no mapping"], "runtime", "must be a mapping, got list"),
    ("shape", ERROR, changed(torch(), NODE, "node"), f"{TEMPLATE}.replicatedJobs[0]", "must be a mapping"),
    ("shape", ERROR, changed(torch(), JOBS, {"node": {}}), f"{TEMPLATE}.replicatedJobs", "must be a list"),
    ("shape", ERROR, changed(torch(), "spec>mlPolicy>numNodes", "2"), "spec.mlPolicy.numNodes", "a whole number"),
    ("shape", ERROR, changed(torch(), "spec>mlPolicy>numNodes", True), "spec.mlPolicy.numNodes", "a whole number"),
    ("shape", ERROR, changed(torch(), "metadata>name", 7), "metadata.name", "must be a text"),
    ("V1", ERROR, changed(torch(), "apiVersion", "kubeflow.org/v2alpha1"), "apiVersion", "trainer.kubeflow.org/v1"),
    ("V1", ERROR, changed(torch(), "kind", "Runtime"), "kind", "ClusterTrainingRuntime or TrainingRuntime"),
    ("name", ERROR, changed(torch(), "metadata>name", "My_Runtime"), "metadata.name", "'My_Runtime'"),
    ("name", ERROR, changed(torch(), "metadata>name", None), "metadata.name", "got None"),
    ("name", ERROR, changed(torch(), "metadata>namespace", "team"), "metadata.namespace", "lives in no namespace"),
    ("name", ERROR, changed(torch(namespace="a"), "metadata>namespace", "a.b"), "metadata.namespace", "'a.b'"),
    ("labels", ERROR, changed(torch(), "metadata>labels>a b", "c"), "metadata.labels", "is not a label key"),
    ("labels", ERROR, changed(torch(), "metadata>annotations>a", 1), "metadata.annotations", "must be a text"),
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
        "the server does not check",
    ),
    (
        "V2",
        ERROR,
        changed(torch(), "spec>replicas", 2),
        "spec.replicas",
        "known are mlPolicy",
    ),
    ("V2", ERROR, changed(torch(), JOBS, []), f"{TEMPLATE}.replicatedJobs", "missing or empty"),
    (
        "V2",
        ERROR,
        changed(torch(), f"{NODE}>name", "0-node"),
        f"{TEMPLATE}.replicatedJobs[0-node].name",
        "a letter first",
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
    ("V3", ERROR, changed(torch(), "spec>mlPolicy>pytorch", {}), "spec.mlPolicy.pytorch", "is not known"),
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
        "whole number",
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
        build.with_initializers(torch(gang=Coscheduling()), **STEPS),
        "spec.podGroupPolicy",
        "may never start",
    ),
    (
        "V4",
        ERROR,
        changed(torch(), f"{NODE}>template>metadata", None),
        f"{TEMPLATE}.replicatedJobs",
        "would get lost",
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
        beside(torch(), {**replicated_jobs(torch())[0].raw, "name": "other"}),
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
        "needs a container of that name",
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
        "cannot see what the initializers fetched",
    ),
    (
        "V7",
        ERROR,
        changed(with_steps(claim="data"), f"{NODE}>{POD}>volumes", None),
        f"{TEMPLATE}.replicatedJobs[dataset-initializer].template.spec.template.spec",
        "no volume of its pods and no claim",
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
        "the first job cannot wait",
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
        "'node' is no job before this one",
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
        "cannot go with dependsOn",
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
        "mpi needs the job 'node'",
    ),
    (
        "V9",
        ERROR,
        changed(deepspeed(), "spec>template>spec>successPolicy", None),
        f"{TEMPLATE}.successPolicy",
        "never end by themselves",
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
        "also a claim of volumeClaimPolicies",
    ),
    (
        "V10",
        ERROR,
        changed(with_steps(), f"{CLAIMS}>0>templates>0>metadata>namespace", "team"),
        f"{TEMPLATE}.volumeClaimPolicies[initializer].metadata.namespace",
        "remove it",
    ),
    ("V11", ERROR, env_injection("warm-up", job="other"), "spec.mlPolicy.torch.envInjection.targets[other]", "no repl"),
    ("V11", ERROR, env_injection("node"), "spec.mlPolicy.torch.envInjection.targets[node]", "must not be named"),
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
        "is set by Trainer",
    ),
    (
        "V14",
        ERROR,
        changed(torch(), "metadata>labels", None),
        "metadata.labels",
        "leaves such runtimes out",
    ),
    (
        "V15",
        ERROR,
        changed(build.torchtune(Blueprint("torchtune-llama3.2-1b")), "metadata>name", "torchtune-llama3.2"),
        "metadata.name",
        "Trainer reads the model from the name",
    ),
]


@pytest.mark.parametrize(
    ("rule", "severity", "runtime", "path", "words"), BROKEN, ids=[f"{case[0]}-{case[3]}" for case in BROKEN]
)
def test_what_breaks_one_rule_is_found_once_where_it_is(rule, severity, runtime, path, words):
    (found,) = findings(runtime)

    assert (found.rule, found.severity, found.path) == (rule, severity, path)
    assert words in found.message


def test_every_rule_is_broken_by_one_of_these():
    assert {rule for rule, *_ in BROKEN} == {"shape", "name", "labels", *(f"V{number}" for number in range(1, 16))}


def test_an_empty_runtime_lacks_everything():
    found = {finding.rule for finding in findings({"apiVersion": "trainer.kubeflow.org/v1alpha1", "spec": {}})}

    assert found == {"V1", "name", "V2", "V14"}


def test_mpi_without_a_launcher_is_found_once():
    runtime = changed(deepspeed(), f"{JOBS}>1", None)
    runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"labels": {ANCESTOR: "trainer"}}

    assert [finding.path for finding in findings(runtime)] == [f"{TEMPLATE}.replicatedJobs[launcher]"]


def test_an_initializer_of_another_name_is_an_error():
    runtime = changed(with_steps(), f"{NODE}>name", "fetch")
    runtime["spec"]["template"]["spec"]["replicatedJobs"][2]["dependsOn"][0]["name"] = "fetch"

    assert "V7" in {finding.rule for finding in findings(runtime) if finding.severity == ERROR}


def test_errors_come_before_warnings():
    runtime = changed(with_steps(), f"{LAST}>{POD}>containers>0>volumeMounts", None)
    runtime = changed(runtime, "metadata>labels", None)

    assert [finding.severity for finding in findings(runtime)] == [ERROR, WARNING]


def test_a_launcher_waits_for_initializers_through_the_nodes():
    assert findings(build.with_initializers(deepspeed(), **STEPS)) == []


def test_the_three_steps_of_the_runtime_guide_lack_only_the_volume(crds):
    """The guide's example: dataset, then model, then training."""
    runtime = with_steps()
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[1]["dependsOn"] = [{"name": "dataset-initializer", "status": "Complete"}]
    jobs[2]["dependsOn"] = [{"name": "model-initializer", "status": "Complete"}]
    del runtime["spec"]["template"]["spec"]["volumeClaimPolicies"]
    for job in jobs:
        del job["template"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]

    assert {(finding.rule, finding.severity) for finding in findings(runtime)} == {("V7", WARNING)}


# What Trainer's own runtimes are warned of, and why: the label switches off the server's checks of two of them, and the
# data cache fetches nothing to disk, so that it has no volume, which Trainer 2.3 demands all the same.
KNOWN = {"flux-distributed": ["labels"], "torch-distributed-with-cache": ["labels", "V7"]}


def test_trainers_own_runtimes_have_no_findings_but_known_warnings(stock):
    found = {name: findings(runtime) for name, runtime in stock.items()}

    assert len(found) == 10
    assert {name: [each.rule for each in each] for name, each in found.items() if each} == KNOWN
    assert {each.severity for all_of_it in found.values() for each in all_of_it} == {WARNING}


def test_a_finding_is_one_line():
    (found,) = findings(changed(torch(), "metadata>labels", None))

    assert re.fullmatch(r"error V14 metadata\.labels: the label .+", str(found))
    assert json.loads(json.dumps(found.to_dict()))["rule"] == "V14"


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
def test_whatever_stands_anywhere_it_is_judged_without_an_exception(data, junk):
    runtime = copy.deepcopy(data.draw(st.sampled_from([torch(), with_steps(), deepspeed(), env_injection("node")])))
    *way, last = data.draw(st.sampled_from([path for path in places(runtime) if path]))
    place = runtime
    for key in way:
        place = place[key]
    place[last] = junk

    assert isinstance(findings(runtime), list)
