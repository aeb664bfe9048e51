"""Rules about single replicated jobs: names, labels, containers, what the controller overwrites. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from trainer_core.admin.findings import Findings, error, warning
from trainer_core.admin.raw import INITIALIZERS, at, items, mapping, replicated_jobs
from trainer_core.cluster.runtimes import ANCESTOR, CONTAINERS, RESERVED

__all__ = ["RULES"]

Raw = Mapping[str, Any]

_DNS1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PATH = "spec.template.spec.replicatedJobs"


def jobs(runtime: Raw) -> Findings:
    """V2 (second half): there are replicated jobs, whose names differ and can be parts of host names."""
    found = replicated_jobs(runtime)
    if not found:
        yield error("V2", _PATH, "is missing or empty; a runtime needs at least the job 'node'")
    for job in found:
        if not _DNS1035.fullmatch(job.name):
            message = f"must be lower-case letters, digits and '-', a letter first, 63 at most, got {job.name!r}"
            yield error("V2", f"{job.path}.name", message)
    for name, times in Counter(job.name for job in found).items():
        if times > 1:
            yield error("V2", _PATH, f"has {times} jobs named {name!r}; give each its own name")


def trainer(runtime: Raw) -> Findings:
    """V4: one job takes what a TrainJob says of its trainer."""
    found = replicated_jobs(runtime)
    trainers = [job for job in found if job.ancestor == "trainer"]
    if found and not trainers:
        message = f"no job has the label {ANCESTOR}=trainer: image, command and nodes of a TrainJob would get lost"
        yield error("V4", _PATH, f"{message}; put it on the template of the job that trains")
    if len(trainers) > 1:
        names = ", ".join(job.name for job in trainers)
        yield warning("V4", _PATH, f"{names} have the label {ANCESTOR}=trainer; one is enough")
    for job in trainers:
        if job.container("node") is None:
            message = "the job that trains needs a container named 'node': what a TrainJob says goes there"
            yield error("V4", f"{job.pod_path}.containers", message)


def ancestors(runtime: Raw) -> Findings:
    """V5: the controller knows three values of the label, and ignores others."""
    for job in replicated_jobs(runtime):
        if job.ancestor is not None and job.ancestor not in CONTAINERS:
            message = f"{job.ancestor!r} is ignored; known are {', '.join(CONTAINERS)}"
            yield warning("V5", f"{job.path}.template.metadata.labels", message)


def labelled(runtime: Raw) -> Findings:
    """V6: a job with the label runs once, and initializers have the container that is looked for."""
    for job in replicated_jobs(runtime):
        if job.ancestor not in CONTAINERS:
            continue
        if job.raw.get("replicas") not in (None, 1):
            message = f"must be 1, got {job.raw['replicas']}; for more nodes set mlPolicy.numNodes"
            yield error("V6", f"{job.path}.replicas", message)
        if job.ancestor in INITIALIZERS and job.container(job.ancestor) is None:
            message = f"a job with the label {job.ancestor} needs a container of that name"
            yield error("V6", f"{job.pod_path}.containers", message)


def job_templates(runtime: Raw) -> Findings:
    """V12: what the Job says of its pods is what a TrainJob needs."""
    mpi = at(runtime, "spec", "mlPolicy", "mpi") is not None
    for job in replicated_jobs(runtime):
        path = f"{job.path}.template.spec"
        overwritten = job.ancestor == "trainer" or (mpi and job.name == "node")
        for key in ("parallelism", "completions"):
            if overwritten and key in job.job:
                yield warning("V12", f"{path}.{key}", "is overwritten by the number of nodes; set mlPolicy.numNodes")
        if job.job.get("completionMode") not in (None, "Indexed"):
            message = f"must be Indexed, by which nodes know their number, got {job.job['completionMode']!r}"
            yield error("V12", f"{path}.completionMode", message)
        if job.pod.get("restartPolicy") not in (None, "OnFailure", "Never"):
            message = f"must be OnFailure or Never, got {job.pod['restartPolicy']!r}"
            yield error("V12", f"{job.pod_path}.restartPolicy", message)


def environment(runtime: Raw) -> Findings:
    """V13: the trainer's environment has nothing that the controller sets."""
    policies = mapping(runtime, "spec", "mlPolicy")
    reserved: set[str] = set().union(*(RESERVED.get(policy, ()) for policy in policies))
    for job in replicated_jobs(runtime):
        container = job.container("node") if job.ancestor == "trainer" else None
        for entry in items(container, "env"):
            if entry.get("name") in reserved:
                path = f"{job.pod_path}.containers[node].env[{entry['name']}]"
                yield error("V13", path, "is set by Trainer, over what stands here; remove it")


RULES: tuple[Callable[[Raw], Findings], ...] = (jobs, trainer, ancestors, labelled, job_templates, environment)
