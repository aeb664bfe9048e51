"""Rules about the replicated jobs of a runtime: names, labels, containers, order, initializers, MPI and volumes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer_core.k8s.runtimes import ANCESTOR_LABEL, CONTAINER_BY_ANCESTOR, RESERVED_ENV
from trainer_core.runtime_admin.accessors import (
    INITIALIZERS,
    VOLUME,
    ReplicatedJob,
    get_items,
    get_mapping,
    get_value,
    list_replicated_jobs,
)
from trainer_core.runtime_admin.diagnostics import Diagnostics, build_error, build_warning

Raw = Mapping[str, Any]

_DNS1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_TEMPLATE = "spec.template.spec"
_CLAIMS = f"{_TEMPLATE}.volumeClaimPolicies"
_MAX_DEPENDENCIES = 5
_PATH = f"{_TEMPLATE}.replicatedJobs"


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
        elif not _has_initializer_volume(runtime, job):
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


RULES: tuple[Callable[[Raw], Diagnostics], ...] = (
    check_job_names,
    check_trainer,
    check_ancestors,
    check_labelled_jobs,
    check_job_templates,
    check_reserved_env,
    check_initializers,
    check_order,
    check_mpi,
    check_volume_claims,
)


def _has_initializer_volume(runtime: Raw, job: ReplicatedJob) -> bool:
    return job.has_volume(VOLUME) or _find_claim(runtime) is not None


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
