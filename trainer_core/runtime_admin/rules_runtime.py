"""Rules about a runtime as a whole: kind, names, labels and policies. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainer_core import naming, validation
from trainer_core.k8s.runtimes import FRAMEWORK_LABEL, ML_POLICIES, NODE
from trainer_core.runtime_admin.accessors import (
    API_VERSION,
    WEBHOOK,
    get_items,
    get_mapping,
    get_value,
    list_replicated_jobs,
)
from trainer_core.runtime_admin.diagnostics import Diagnostic, Diagnostics, build_error, build_warning
from trainer_core.runtime_admin.ml_policies import REMOVED_FIELDS, MlPolicyFields
from trainer_core.runtime_admin.runtime_builder import TORCHTUNE_MODELS

Raw = Mapping[str, Any]

_POD_GROUP_POLICIES = {"coscheduling": ("scheduleTimeoutSeconds",), "volcano": ("networkTopology",)}


def check_kind(runtime: Raw) -> Diagnostics:
    """V1: the kind is a runtime of Trainer v2."""
    if runtime.get("apiVersion") != API_VERSION:
        yield build_error("V1", "apiVersion", f"must be {API_VERSION}, got {runtime.get('apiVersion')!r}")
    if runtime.get("kind") not in ("ClusterTrainingRuntime", "TrainingRuntime"):
        yield build_error(
            "V1", "kind", f"must be ClusterTrainingRuntime or TrainingRuntime, got {runtime.get('kind')!r}"
        )


def check_names(runtime: Raw) -> Diagnostics:
    """Name and namespace are valid in Kubernetes."""
    name, namespace = get_value(runtime, "metadata", "name"), get_value(runtime, "metadata", "namespace")
    if not naming.is_object_name(name):
        message = f"must be lower-case letters, digits, '-' and '.', 253 at most, got {name!r}"
        yield build_error("name", "metadata.name", message)
    if namespace is not None and runtime.get("kind") == "ClusterTrainingRuntime":
        message = "a ClusterTrainingRuntime has no namespace; remove the field, or use the kind TrainingRuntime"
        yield build_error("name", "metadata.namespace", message)
    elif namespace is not None and not naming.is_namespace(namespace):
        message = f"must be at most 63 lower-case letters, digits and '-', got {namespace!r}"
        yield build_error("name", "metadata.namespace", message)


def check_labels(runtime: Raw) -> Diagnostics:
    """Labels and annotations are valid in Kubernetes."""
    yield from _check_metadata(runtime, "metadata")
    yield from _check_metadata(get_value(runtime, "spec", "template"), "spec.template.metadata")
    for job in list_replicated_jobs(runtime):
        yield from _check_metadata(job.raw.get("template"), f"{job.path}.template.metadata")
        yield from _check_metadata(job.job.get("template"), f"{job.path}.template.spec.template.metadata")
    if get_value(runtime, "metadata", "labels", WEBHOOK) == "disabled":
        message = "webhook-validation=disabled turns off the validation webhook for this runtime; remove the label"
        yield build_warning("labels", "metadata.labels", message)


def check_spec(runtime: Raw) -> Diagnostics:
    """V2 (first half): the spec is not empty and has only known fields."""
    body = get_mapping(runtime, "spec")
    if not body:
        yield build_error("V2", "spec", "is empty; it requires template.spec.replicatedJobs")
    yield from _check_unknown_fields("V2", "spec", body, ("mlPolicy", "podGroupPolicy", "template"))


def check_ml_policy(runtime: Raw, fields: MlPolicyFields) -> Diagnostics:
    """V3: at most one ML policy, with the fields that the version of Trainer has."""
    policies = get_mapping(runtime, "spec", "mlPolicy")
    chosen = [name for name in ML_POLICIES if policies.get(name) is not None]
    path = "spec.mlPolicy"
    if len(chosen) > 1:
        yield build_error("V3", path, f"has {', '.join(chosen)}; keep one")
    nodes = policies.get("numNodes")
    if nodes is not None and nodes < 1:
        yield build_error("V3", f"{path}.numNodes", f"must be at least 1, got {nodes}")
    yield from _check_unknown_fields("V3", path, policies, ("numNodes", *fields))
    for name in chosen:
        if name in fields:
            yield from _check_policy_fields(name, get_mapping(policies, name), fields[name])


def check_pod_group_policy(runtime: Raw) -> Diagnostics:
    """V3 (second half): at most one pod group policy."""
    policies = get_mapping(runtime, "spec", "podGroupPolicy")
    chosen = [name for name in _POD_GROUP_POLICIES if policies.get(name) is not None]
    if len(chosen) > 1:
        yield build_error("V3", "spec.podGroupPolicy", f"has {', '.join(chosen)}; keep one")
    yield from _check_unknown_fields("V3", "spec.podGroupPolicy", policies, tuple(_POD_GROUP_POLICIES))
    for name in chosen:
        yield from _check_unknown_fields(
            "V3", f"spec.podGroupPolicy.{name}", get_mapping(policies, name), _POD_GROUP_POLICIES[name]
        )
    if chosen and any(job.depends_on for job in list_replicated_jobs(runtime)):
        message = "counts also pods of jobs that wait for others (dependsOn), so the TrainJob may never start"
        yield build_warning("V3", "spec.podGroupPolicy", message)


def check_env_injection(runtime: Raw) -> Diagnostics:
    """V11: the targets of the torch environment are existing containers."""
    known = {job.name: job for job in list_replicated_jobs(runtime)}
    for target in get_items(runtime, "spec", "mlPolicy", "torch", "envInjection", "targets"):
        job_name = target.get("jobName")
        path = f"spec.mlPolicy.torch.envInjection.targets[{job_name}]"
        if job_name not in known:
            yield build_error(
                "V11", path, f"replicated job {job_name!r} does not exist; existing jobs: {', '.join(known) or 'none'}"
            )
            continue
        pod = known[job_name].pod
        containers = [each.get("name") for each in (*get_items(pod, "containers"), *get_items(pod, "initContainers"))]
        for name in target.get("containerNames") or ():
            if name == NODE:
                yield build_error(
                    "V11", path, "the container node always gets the environment; remove it from the list"
                )
            elif name not in containers:
                yield build_error("V11", path, f"job {job_name!r} has no container {name!r}")


def check_framework(runtime: Raw) -> Diagnostics:
    """V14: the framework label exists. V15: the name of a torchtune runtime contains its model."""
    value = get_value(runtime, "metadata", "labels", FRAMEWORK_LABEL)
    if not value:
        message = f"the label {FRAMEWORK_LABEL} is missing, so the Kubeflow SDK ignores the runtime; set it"
        yield build_warning("V14", "metadata.labels", message)
    name = get_value(runtime, "metadata", "name") or ""
    if value == "torchtune" and name not in TORCHTUNE_MODELS:
        message = f"Trainer reads the model from the name; use one of {', '.join(TORCHTUNE_MODELS)}; got {name!r}"
        yield build_error("V15", "metadata.name", message)


RULES: tuple[Callable[[Raw], Diagnostics], ...] = (
    check_kind,
    check_names,
    check_labels,
    check_spec,
    check_pod_group_policy,
    check_env_injection,
    check_framework,
)


def _check_metadata(data: Any, path: str) -> Diagnostics:
    for field, check in (("labels", validation.check_labels), ("annotations", validation.check_annotations)):
        try:
            check(field, get_mapping(data, "metadata", field))
        except ValueError as error:
            yield build_error("labels", f"{path}.{field}", str(error))


def _check_policy_fields(name: str, settings: Raw, known: tuple[str, ...]) -> Diagnostics:
    path = f"spec.mlPolicy.{name}"
    removed = [key for key in settings if name == "torch" and key in REMOVED_FIELDS and key not in known]
    for key in removed:
        message = (
            "was removed in Trainer 2.2; `trainjob runtimes upgrade FILE` prints the runtime without it. For an older "
            "Trainer use --trainer-version"
        )
        yield build_error("V3", f"{path}.{key}", message)
    yield from _check_unknown_fields("V3", path, settings, (*known, *removed))
    processes = settings.get("numProcPerNode")
    if name != "torch" and processes is not None and not _is_positive_integer(processes):
        yield build_error("V3", f"{path}.numProcPerNode", f"must be an integer of at least 1, got {processes!r}")
    if settings.get("mpiImplementation") not in (None, "", "OpenMPI"):
        yield build_error("V3", f"{path}.mpiImplementation", f"must be OpenMPI, got {settings['mpiImplementation']!r}")


def _is_positive_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_unknown_fields(rule: str, path: str, data: Raw, known: Iterable[str]) -> Iterable[Diagnostic]:
    known = tuple(known)
    for key in data:
        if key not in known:
            yield build_error(rule, f"{path}.{key}", f"is an unknown field; known fields: {', '.join(known) or 'none'}")
