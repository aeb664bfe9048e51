"""Rules of a runtime: those about the whole, then those about its replicated jobs. Pure functions."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainer_core.base import naming, validation
from trainer_core.k8s.runtimes import (
    ANCESTOR_LABEL,
    CONTAINER_BY_ANCESTOR,
    FRAMEWORK_LABEL,
    ML_POLICIES,
    NODE,
    RESERVED_ENV,
)
from trainer_core.model import torchtune
from trainer_core.runtime_admin.accessors import (
    API_VERSION,
    INITIALIZERS,
    VOLUME,
    WEBHOOK,
    ReplicatedJob,
    get_items,
    get_mapping,
    get_value,
    list_replicated_jobs,
)
from trainer_core.runtime_admin.diagnostics import Diagnostic, Diagnostics, build_error, build_warning
from trainer_core.runtime_admin.ml_policies import REMOVED_FIELDS, MlPolicyFields

Raw = Mapping[str, Any]

_DNS1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_TEMPLATE = "spec.template.spec"
_CLAIMS = f"{_TEMPLATE}.volumeClaimPolicies"
_MAX_DEPENDENCIES = 5
_PATH = f"{_TEMPLATE}.replicatedJobs"
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
    if value == "torchtune" and name not in torchtune.MODELS:
        message = f"Trainer reads the model from the name; use one of {', '.join(torchtune.MODELS)}; got {name!r}"
        yield build_error("V15", "metadata.name", message)


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


def check_job_names(runtime: Raw) -> Diagnostics:
    """V2 (second half): replicated jobs exist, and their names are unique DNS labels."""
    jobs = list_replicated_jobs(runtime)
    if not jobs:
        yield build_error("V2", _PATH, "is missing or empty; a runtime requires at least the job 'node'")
    for job in jobs:
        if not _DNS1035.fullmatch(job.name):
            message = f"must be at most 63 lower-case letters, digits and '-' and start with a letter, got {job.name!r}"
            yield build_error("V2", f"{job.path}.name", message)
    for name, times in Counter(job.name for job in jobs).items():
        if times > 1:
            yield build_error("V2", _PATH, f"has {times} jobs named {name!r}; use unique names")


def check_trainer(runtime: Raw) -> Diagnostics:
    """V4: one job receives the trainer of a TrainJob."""
    jobs = list_replicated_jobs(runtime)
    trainers = [job for job in jobs if job.ancestor == "trainer"]
    if jobs and not trainers:
        message = f"no job has the label {ANCESTOR_LABEL}=trainer; without it the trainer of a TrainJob is ignored"
        yield build_error("V4", _PATH, f"{message}; set it on the template of the training job")
    if len(trainers) > 1:
        names = ", ".join(job.name for job in trainers)
        yield build_warning("V4", _PATH, f"{names} have the label {ANCESTOR_LABEL}=trainer; keep it on one job")
    for job in trainers:
        if job.container("node") is None:
            message = "the training job requires a container named 'node', which receives the trainer of a TrainJob"
            yield build_error("V4", f"{job.pod_path}.containers", message)


def check_ancestors(runtime: Raw) -> Diagnostics:
    """V5: the ancestor label has one of the three values that the controller knows."""
    for job in list_replicated_jobs(runtime):
        if job.ancestor is not None and job.ancestor not in CONTAINER_BY_ANCESTOR:
            message = f"{job.ancestor!r} is ignored; use one of {', '.join(CONTAINER_BY_ANCESTOR)}"
            yield build_warning("V5", f"{job.path}.template.metadata.labels", message)


def check_labelled_jobs(runtime: Raw) -> Diagnostics:
    """V6: a labelled job has one replica, and initializers have a container of their name."""
    for job in list_replicated_jobs(runtime):
        if job.ancestor not in CONTAINER_BY_ANCESTOR:
            continue
        if job.raw.get("replicas") not in (None, 1):
            message = f"must be 1, got {job.raw['replicas']}; for more nodes set mlPolicy.numNodes"
            yield build_error("V6", f"{job.path}.replicas", message)
        if job.ancestor in INITIALIZERS and job.container(job.ancestor) is None:
            message = f"a job with the label {job.ancestor} requires a container of that name"
            yield build_error("V6", f"{job.pod_path}.containers", message)


def check_job_templates(runtime: Raw) -> Diagnostics:
    """V12: the Job template is compatible with TrainJobs."""
    mpi = get_value(runtime, "spec", "mlPolicy", "mpi") is not None
    for job in list_replicated_jobs(runtime):
        path = f"{job.path}.template.spec"
        overwritten = job.ancestor == "trainer" or (mpi and job.name == "node")
        for key in ("parallelism", "completions"):
            if overwritten and key in job.job:
                yield build_warning(
                    "V12", f"{path}.{key}", "is overwritten by the number of nodes; set mlPolicy.numNodes"
                )
        if job.job.get("completionMode") not in (None, "Indexed"):
            message = f"must be Indexed, because each node reads its index, got {job.job['completionMode']!r}"
            yield build_error("V12", f"{path}.completionMode", message)
        if job.pod.get("restartPolicy") not in (None, "OnFailure", "Never"):
            message = f"must be OnFailure or Never, got {job.pod['restartPolicy']!r}"
            yield build_error("V12", f"{job.pod_path}.restartPolicy", message)


def check_reserved_env(runtime: Raw) -> Diagnostics:
    """V13: the environment of the trainer has no variable that the controller sets."""
    policies = get_mapping(runtime, "spec", "mlPolicy")
    reserved: set[str] = set().union(*(RESERVED_ENV.get(policy, ()) for policy in policies))
    for job in list_replicated_jobs(runtime):
        container = job.container("node") if job.ancestor == "trainer" else None
        for entry in get_items(container, "env"):
            if entry.get("name") in reserved:
                path = f"{job.pod_path}.containers[node].env[{entry['name']}]"
                yield build_error("V13", path, "is overwritten by Trainer; remove it")


def check_initializers(runtime: Raw) -> Diagnostics:
    """V7: initializers have the required names, and mount the volume that the trainer reads."""
    jobs = [job for job in list_replicated_jobs(runtime) if job.ancestor in INITIALIZERS]
    for job in jobs:
        if job.name != job.ancestor:
            message = f"Trainer looks for an initializer in the job named {job.ancestor!r}; rename the job"
            yield build_error("V7", f"{job.path}.name", message)
        if not job.mounts(VOLUME):
            message = (
                f"mounts no volume named {VOLUME!r}: Trainer 2.3 refuses TrainJobs with this initializer; mount it"
            )
            yield build_warning("V7", job.pod_path, message)
        elif not job.has_volume(VOLUME) and _find_claim(runtime) is None:
            yield build_error(
                "V7",
                job.pod_path,
                f"mounts {VOLUME!r}, which is neither a volume of the pod nor a claim template; add it",
            )
    if any(job.mounts(VOLUME) for job in jobs):
        yield from _check_trainer_volume(runtime)


def check_order(runtime: Raw) -> Diagnostics:
    """V8: dependencies come first, and training waits for the initializers."""
    jobs = list_replicated_jobs(runtime)
    for number, job in enumerate(jobs):
        yield from _check_dependencies(job, [each.name for each in jobs[:number]])
    startup = get_value(runtime, "spec", "template", "spec", "startupPolicy", "startupPolicyOrder")
    if startup == "InOrder" and any(job.depends_on for job in jobs):
        yield build_error(
            "V8", f"{_TEMPLATE}.startupPolicy", "InOrder cannot be combined with dependsOn; remove one of them"
        )
    initializers = [job.name for job in jobs if job.ancestor in INITIALIZERS]
    for job in (each for each in jobs if each.ancestor == "trainer"):
        for name in initializers:
            if name not in _list_completed_before(job, jobs):
                message = f"does not wait for {name!r}; add dependsOn {{name: {name}, status: Complete}}"
                yield build_warning("V8", job.path, message)


def check_mpi(runtime: Raw) -> Diagnostics:
    """V9: the launcher ends the job, and can reach the nodes."""
    if get_value(runtime, "spec", "mlPolicy", "mpi") is None:
        return
    jobs = {job.name: job for job in list_replicated_jobs(runtime)}
    for name in ("launcher", "node"):
        if name not in jobs or jobs[name].container("node") is None:
            message = f"mpi requires the job {name!r} with a container named 'node'"
            yield build_error("V9", f"{_TEMPLATE}.replicatedJobs[{name}]", message)
    if "launcher" in jobs and jobs["launcher"].ancestor != "trainer":
        yield build_error("V9", jobs["launcher"].path, f"the launcher must have the label {ANCESTOR_LABEL}=trainer")
    if "launcher" not in (
        get_value(runtime, "spec", "template", "spec", "successPolicy", "targetReplicatedJobs") or ()
    ):
        message = "must have launcher in targetReplicatedJobs, because the SSH servers of the nodes never exit"
        yield build_error("V9", f"{_TEMPLATE}.successPolicy", message)
    if get_value(runtime, "spec", "template", "spec", "network", "publishNotReadyAddresses") is not True:
        message = "should be true, so that DNS resolves hosts before they are ready"
        yield build_warning("V9", f"{_TEMPLATE}.network.publishNotReadyAddresses", message)
    if {"launcher", "node"} <= jobs.keys():
        yield from _check_launcher_order(jobs["launcher"], jobs["node"])


def check_volume_claims(runtime: Raw) -> Diagnostics:
    """V10: each claim template is mounted, and is the only volume of its name."""
    templates = [
        template
        for policy in get_items(runtime, "spec", "template", "spec", "volumeClaimPolicies")
        for template in get_items(policy, "templates")
    ]
    jobs = list_replicated_jobs(runtime)
    for name, times in Counter(str(get_value(each, "metadata", "name") or "") for each in templates).items():
        if times > 1:
            yield build_error("V10", _CLAIMS, f"{times} templates are named {name!r}; use unique names")
        if not any(job.mounts(name) for job in jobs):
            yield build_error(
                "V10", f"{_CLAIMS}[{name}]", f"no container mounts {name!r}; mount it, or remove the template"
            )
        for job in jobs:
            if job.has_volume(name):
                message = f"{name!r} is also a claim template of volumeClaimPolicies; keep one of them"
                yield build_error("V10", f"{job.pod_path}.volumes[{name}]", message)
    for template in templates:
        if get_value(template, "metadata", "namespace"):
            name = get_value(template, "metadata", "name")
            yield build_error(
                "V10",
                f"{_CLAIMS}[{name}].metadata.namespace",
                "a claim has the namespace of its TrainJob; remove the field",
            )


def _find_claim(runtime: Raw) -> Raw | None:
    """Return the claim template for the volume of the initializers."""
    policies = get_items(runtime, "spec", "template", "spec", "volumeClaimPolicies")
    templates = (template for policy in policies for template in get_items(policy, "templates"))
    return next((each for each in templates if get_value(each, "metadata", "name") == VOLUME), None)


def _check_trainer_volume(runtime: Raw) -> Diagnostics:
    for job in (each for each in list_replicated_jobs(runtime) if each.ancestor == "trainer"):
        mounts = get_items(job.container("node"), "volumeMounts")
        if not any(mount.get("name") == VOLUME for mount in mounts):
            message = f"does not mount {VOLUME!r} and so cannot read the data of the initializers; mount it"
            yield build_warning("V7", f"{job.pod_path}.containers[node].volumeMounts", message)
    nodes = get_value(runtime, "spec", "mlPolicy", "numNodes") or 1
    if nodes > 1 and get_value(_find_claim(runtime), "spec", "accessModes") == ["ReadWriteOnce"]:
        message = f"ReadWriteOnce allows one machine, but the runtime has {nodes} nodes; use ReadWriteMany"
        yield build_warning("V7", f"{_CLAIMS}[{VOLUME}].spec.accessModes", message)


def _check_dependencies(job: ReplicatedJob, earlier: Sequence[str]) -> Diagnostics:
    path = f"{job.path}.dependsOn"
    names = [str(each.get("name")) for each in job.depends_on]
    if names and not earlier:
        yield build_error("V8", path, "the first job cannot have dependencies; move them before this job")
        return
    for name in [each for each in names if each not in earlier]:
        yield build_error("V8", path, f"{name!r} is not an earlier job; earlier jobs: {', '.join(earlier)}")
    if len(set(names)) < len(names) or len(names) > _MAX_DEPENDENCIES:
        yield build_error("V8", path, f"must name at most {_MAX_DEPENDENCIES} jobs, each once, got {', '.join(names)}")
    for each in job.depends_on:
        if each.get("status") not in ("Ready", "Complete"):
            yield build_error("V8", path, f"status must be Ready or Complete, got {each.get('status')!r}")


def _list_completed_before(job: ReplicatedJob, jobs: Sequence[ReplicatedJob]) -> set[str]:
    """Return the names of all jobs that are complete when a job starts, including indirect dependencies."""
    known = {each.name: each for each in jobs[: jobs.index(job)]}
    names: set[str] = set()
    for each in job.depends_on:
        name = str(each.get("name"))
        if each.get("status") == "Complete":
            names.add(name)
        if name in known:
            names |= _list_completed_before(known[name], jobs)
    return names


def _check_launcher_order(launcher: ReplicatedJob, node: ReplicatedJob) -> Diagnostics:
    ready = {"name": "node", "status": "Ready"} in [dict(each) for each in launcher.depends_on]
    if not ready:
        message = "should wait for the nodes: dependsOn {name: node, status: Ready}"
        yield build_warning("V9", f"{launcher.path}.dependsOn", message)
    elif "readinessProbe" not in (node.container("node") or {"readinessProbe": None}):
        message = "has no readinessProbe, so a node is ready before its SSH server listens; add one"
        yield build_warning("V9", f"{node.pod_path}.containers[node]", message)


def check_unknown_fields(runtime: Mapping[str, Any]) -> Diagnostics:
    """V16: the pods and jobs of a runtime have only fields that exist, with the nearest name of one that does not."""
    spec = runtime.get("spec")
    template = spec.get("template") if isinstance(spec, Mapping) else None
    if isinstance(template, Mapping):
        for path, message in find_unknown_fields({"template": template}, "TrainingRuntimeSpec", "spec"):
            yield build_error("V16", path, message)


def find_unknown_fields(data: Mapping[str, Any], kind: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each field that does not exist, and a message with the nearest name.

    The fields are those of the models of `kubeflow-trainer-api`. Without that package nothing is found.
    """
    try:
        from kubeflow_trainer_api import models  # type: ignore[import-untyped]  # Takes seconds.
    except ImportError:
        return
    try:
        parsed = getattr(models, f"TrainerV1alpha1{kind}").from_dict(dict(data))
    except (ValueError, TypeError, AttributeError):
        return  # A value of the wrong type, which other checks find.
    yield from _compare(data, parsed, path)


def _compare(given: Any, parsed: Any, path: str) -> Iterator[tuple[str, str]]:
    fields = getattr(type(parsed), "model_fields", None)
    if isinstance(given, Mapping) and fields is not None:
        names = {str(field.alias or name): name for name, field in fields.items()}
        for key, value in given.items():
            if key in names:
                yield from _compare(value, getattr(parsed, names[key]), f"{path}.{key}")
            else:
                similar = difflib.get_close_matches(str(key), names, 1)
                yield f"{path}.{key}", f"is unknown{f'; use {similar[0]}' if similar else ''}"
    elif isinstance(given, list) and isinstance(parsed, list):
        for index, (item, model) in enumerate(zip(given, parsed, strict=False)):
            name = item.get("name", index) if isinstance(item, Mapping) else index
            yield from _compare(item, model, f"{path}[{name}]")
