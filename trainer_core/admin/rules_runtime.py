"""Rules about a runtime as a whole: what it is, its names and labels, its policies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainer_core import checks
from trainer_core.admin.findings import Finding, Findings, error, warning
from trainer_core.admin.models import MODELS
from trainer_core.admin.raw import API_VERSION, WEBHOOK, at, items, mapping, replicated_jobs
from trainer_core.cluster.runtimes import FRAMEWORK, NODE, POLICIES

__all__ = ["RULES"]

Raw = Mapping[str, Any]

_POLICY_KEYS = {
    "torch": ("envInjection",),
    "mpi": ("numProcPerNode", "mpiImplementation", "sshAuthMountPath", "runLauncherAsNode"),
    "jax": (),
    "xgboost": (),
    "flux": ("numProcPerNode",),
}
_GANGS = {"coscheduling": ("scheduleTimeoutSeconds",), "volcano": ("networkTopology",)}
_REMOVED = ("numProcPerNode", "elasticPolicy")


def kind(runtime: Raw) -> Findings:
    """V1: it is a runtime of Trainer v2."""
    if runtime.get("apiVersion") != API_VERSION:
        yield error("V1", "apiVersion", f"must be {API_VERSION}, got {runtime.get('apiVersion')!r}")
    if runtime.get("kind") not in ("ClusterTrainingRuntime", "TrainingRuntime"):
        yield error("V1", "kind", f"must be ClusterTrainingRuntime or TrainingRuntime, got {runtime.get('kind')!r}")


def names(runtime: Raw) -> Findings:
    """Name and namespace are ones that Kubernetes takes."""
    name, namespace = at(runtime, "metadata", "name"), at(runtime, "metadata", "namespace")
    if not checks.is_object_name(name):
        message = f"must be lower-case letters, digits, '-' and '.', 253 at most, got {name!r}"
        yield error("name", "metadata.name", message)
    if namespace is not None and runtime.get("kind") == "ClusterTrainingRuntime":
        message = "a ClusterTrainingRuntime lives in no namespace; remove it, or make it a TrainingRuntime"
        yield error("name", "metadata.namespace", message)
    elif namespace is not None and not checks.is_namespace(namespace):
        message = f"must be at most 63 lower-case letters, digits and '-', got {namespace!r}"
        yield error("name", "metadata.namespace", message)


def labels(runtime: Raw) -> Findings:
    """Labels and annotations are ones that Kubernetes takes."""
    yield from _syntax(runtime, "metadata")
    yield from _syntax(at(runtime, "spec", "template"), "spec.template.metadata")
    for job in replicated_jobs(runtime):
        yield from _syntax(job.raw.get("template"), f"{job.path}.template.metadata")
        yield from _syntax(job.job.get("template"), f"{job.path}.template.spec.template.metadata")
    if at(runtime, "metadata", "labels", WEBHOOK) == "disabled":
        message = "webhook-validation=disabled: the server does not check this runtime; remove the label"
        yield warning("labels", "metadata.labels", message)


def spec(runtime: Raw) -> Findings:
    """V2 (first half): there is something in it, and nothing that is not known."""
    body = mapping(runtime, "spec")
    if not body:
        yield error("V2", "spec", "is empty; it needs template.spec.replicatedJobs")
    yield from _unknown("V2", "spec", body, ("mlPolicy", "podGroupPolicy", "template"))


def policy(runtime: Raw) -> Findings:
    """V3: one policy at most, with the settings it has since Trainer 2.2."""
    given = mapping(runtime, "spec", "mlPolicy")
    chosen = [name for name in POLICIES if given.get(name) is not None]
    path = "spec.mlPolicy"
    if len(chosen) > 1:
        yield error("V3", path, f"has {', '.join(chosen)}; keep one of them")
    nodes = given.get("numNodes")
    if nodes is not None and nodes < 1:
        yield error("V3", f"{path}.numNodes", f"must be at least 1, got {nodes}")
    yield from _unknown("V3", path, given, ("numNodes", *POLICIES))
    for name in chosen:
        yield from _policy_settings(name, mapping(given, name))


def gang(runtime: Raw) -> Findings:
    """V3 (the other policy): one way to start all pods together."""
    given = mapping(runtime, "spec", "podGroupPolicy")
    chosen = [name for name in _GANGS if given.get(name) is not None]
    if len(chosen) > 1:
        yield error("V3", "spec.podGroupPolicy", f"has {', '.join(chosen)}; keep one of them")
    yield from _unknown("V3", "spec.podGroupPolicy", given, tuple(_GANGS))
    for name in chosen:
        yield from _unknown("V3", f"spec.podGroupPolicy.{name}", mapping(given, name), _GANGS[name])
    if chosen and any(job.depends_on for job in replicated_jobs(runtime)):
        message = "counts the pods of all steps, also of those that wait for another; such a job may never start"
        yield warning("V3", "spec.podGroupPolicy", message)


def env_injection(runtime: Raw) -> Findings:
    """V11: torch's environment goes to containers there are."""
    known = {job.name: job for job in replicated_jobs(runtime)}
    for target in items(runtime, "spec", "mlPolicy", "torch", "envInjection", "targets"):
        job_name = target.get("jobName")
        path = f"spec.mlPolicy.torch.envInjection.targets[{job_name}]"
        if job_name not in known:
            yield error("V11", path, f"there is no replicated job {job_name!r}; there are {', '.join(known) or 'none'}")
            continue
        pod = known[job_name].pod
        there = [each.get("name") for each in (*items(pod, "containers"), *items(pod, "initContainers"))]
        for name in target.get("containerNames") or ():
            if name == NODE:
                yield error("V11", path, "node gets the environment anyway, and must not be named")
            elif name not in there:
                yield error("V11", path, f"job {job_name!r} has no container {name!r}")


def framework(runtime: Raw) -> Findings:
    """V14: clients can see it. V15: Trainer finds the model of a torchtune runtime in its name."""
    value = at(runtime, "metadata", "labels", FRAMEWORK)
    if not value:
        message = (
            f"the label {FRAMEWORK} is missing: the Kubeflow SDK leaves such runtimes out; set it, such as to torch"
        )
        yield error("V14", "metadata.labels", message)
    name = at(runtime, "metadata", "name") or ""
    if value == "torchtune" and name not in MODELS:
        message = f"Trainer reads the model from the name, and knows {', '.join(MODELS)}; got {name!r}"
        yield error("V15", "metadata.name", message)


RULES: tuple[Callable[[Raw], Findings], ...] = (
    kind,
    names,
    labels,
    spec,
    policy,
    gang,
    env_injection,
    framework,
)


def _syntax(data: Any, path: str) -> Findings:
    for what, check in (("labels", checks.check_labels), ("annotations", checks.check_annotations)):
        try:
            check(what, mapping(data, "metadata", what))
        except ValueError as wrong:
            yield error("labels", f"{path}.{what}", str(wrong))


def _policy_settings(name: str, settings: Raw) -> Findings:
    path = f"spec.mlPolicy.{name}"
    removed = [key for key in settings if name == "torch" and key in _REMOVED]
    for key in removed:
        message = "was removed in Trainer 2.2; set num_proc_per_node of the trainer of each TrainJob"
        yield error("V3", f"{path}.{key}", message)
    yield from _unknown("V3", path, settings, (*_POLICY_KEYS[name], *removed))
    processes = settings.get("numProcPerNode")
    if name != "torch" and processes is not None and not _positive(processes):
        yield error("V3", f"{path}.numProcPerNode", f"must be a whole number of at least 1, got {processes!r}")
    if settings.get("mpiImplementation") not in (None, "", "OpenMPI"):
        yield error("V3", f"{path}.mpiImplementation", f"must be OpenMPI, got {settings['mpiImplementation']!r}")


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _unknown(rule: str, path: str, data: Raw, known: Iterable[str]) -> Iterable[Finding]:
    known = tuple(known)
    for key in data:
        if key not in known:
            yield error(rule, f"{path}.{key}", f"is not known; known are {', '.join(known) or 'none'}")
