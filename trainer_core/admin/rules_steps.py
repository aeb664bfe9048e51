"""Rules about how replicated jobs go together: order, initializers, MPI, shared volumes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer_core.admin.findings import Findings, error, warning
from trainer_core.admin.raw import INITIALIZERS, VOLUME, ReplicatedJob, at, items, replicated_jobs

__all__ = ["RULES"]

Raw = Mapping[str, Any]

_TEMPLATE = "spec.template.spec"
_CLAIMS = f"{_TEMPLATE}.volumeClaimPolicies"
_MAX_DEPENDENCIES = 5


def initializers(runtime: Raw) -> Findings:
    """V7: initializers have the names that are looked for, and write where the trainer reads."""
    found = [job for job in replicated_jobs(runtime) if job.ancestor in INITIALIZERS]
    for job in found:
        if job.name != job.ancestor:
            message = f"a TrainJob's initializer is put into the job named {job.ancestor!r}; rename it"
            yield error("V7", f"{job.path}.name", message)
        if not job.mounts(VOLUME):
            message = f"mounts no volume named {VOLUME!r}: Trainer 2.3 refuses TrainJobs that set this initializer"
            yield warning("V7", job.pod_path, message)
        elif not _volume_exists(runtime, job):
            yield error("V7", job.pod_path, f"mounts {VOLUME!r}, which is no volume of its pods and no claim")
    if any(job.mounts(VOLUME) for job in found):
        yield from _readers(runtime)


def order(runtime: Raw) -> Findings:
    """V8: what a job waits for comes before it, and training waits for the initializers."""
    jobs = replicated_jobs(runtime)
    for number, job in enumerate(jobs):
        yield from _dependencies(job, [each.name for each in jobs[:number]])
    startup = at(runtime, "spec", "template", "spec", "startupPolicy", "startupPolicyOrder")
    if startup == "InOrder" and any(job.depends_on for job in jobs):
        yield error("V8", f"{_TEMPLATE}.startupPolicy", "InOrder cannot go with dependsOn; remove one of the two")
    first = [job.name for job in jobs if job.ancestor in INITIALIZERS]
    for job in (each for each in jobs if each.ancestor == "trainer"):
        for name in first:
            if name not in _completed_before(job, jobs):
                message = f"does not wait for {name!r}; add dependsOn {{name: {name}, status: Complete}}"
                yield warning("V8", job.path, message)


def mpi(runtime: Raw) -> Findings:
    """V9: a launcher that ends the job, and nodes it can reach."""
    if at(runtime, "spec", "mlPolicy", "mpi") is None:
        return
    jobs = {job.name: job for job in replicated_jobs(runtime)}
    for name in ("launcher", "node"):
        if name not in jobs or jobs[name].container("node") is None:
            message = f"mpi needs the job {name!r} with a container named 'node'"
            yield error("V9", f"{_TEMPLATE}.replicatedJobs[{name}]", message)
    if "launcher" in jobs and jobs["launcher"].ancestor != "trainer":
        yield error("V9", jobs["launcher"].path, "the launcher is what takes the TrainJob's trainer; label it so")
    if "launcher" not in (at(runtime, "spec", "template", "spec", "successPolicy", "targetReplicatedJobs") or ()):
        message = "must name launcher in targetReplicatedJobs: the SSH servers of the nodes never end by themselves"
        yield error("V9", f"{_TEMPLATE}.successPolicy", message)
    if at(runtime, "spec", "template", "spec", "network", "publishNotReadyAddresses") is not True:
        message = "should be true: hosts that are not ready cannot be found by name"
        yield warning("V9", f"{_TEMPLATE}.network.publishNotReadyAddresses", message)
    if {"launcher", "node"} <= jobs.keys():
        yield from _launcher_waits(jobs["launcher"], jobs["node"])


def claims(runtime: Raw) -> Findings:
    """V10: every claim that is made for a TrainJob is used, and is the only volume of its name."""
    templates = [
        template
        for policy in items(runtime, "spec", "template", "spec", "volumeClaimPolicies")
        for template in items(policy, "templates")
    ]
    jobs = replicated_jobs(runtime)
    for name, times in Counter(str(at(each, "metadata", "name") or "") for each in templates).items():
        if times > 1:
            yield error("V10", _CLAIMS, f"{times} templates are named {name!r}; give each its own name")
        if not any(job.mounts(name) for job in jobs):
            yield error("V10", f"{_CLAIMS}[{name}]", f"no container mounts {name!r}; mount it, or remove the claim")
        for job in jobs:
            if job.has_volume(name):
                message = f"{name!r} is also a claim of volumeClaimPolicies; keep one of the two"
                yield error("V10", f"{job.pod_path}.volumes[{name}]", message)
    for template in templates:
        if at(template, "metadata", "namespace"):
            name = at(template, "metadata", "name")
            yield error("V10", f"{_CLAIMS}[{name}].metadata.namespace", "a claim lives beside its TrainJob; remove it")


RULES: tuple[Callable[[Raw], Findings], ...] = (initializers, order, mpi, claims)


def _volume_exists(runtime: Raw, job: ReplicatedJob) -> bool:
    return job.has_volume(VOLUME) or _claim(runtime) is not None


def _claim(runtime: Raw) -> Raw | None:
    """The claim that is made for the volume of the initializers."""
    policies = items(runtime, "spec", "template", "spec", "volumeClaimPolicies")
    templates = (template for policy in policies for template in items(policy, "templates"))
    return next((each for each in templates if at(each, "metadata", "name") == VOLUME), None)


def _readers(runtime: Raw) -> Findings:
    for job in (each for each in replicated_jobs(runtime) if each.ancestor == "trainer"):
        mounts = items(job.container("node"), "volumeMounts")
        if not any(mount.get("name") == VOLUME for mount in mounts):
            message = f"does not mount {VOLUME!r}, so that it cannot see what the initializers fetched"
            yield warning("V7", f"{job.pod_path}.containers[node].volumeMounts", message)
    nodes = at(runtime, "spec", "mlPolicy", "numNodes") or 1
    if nodes > 1 and at(_claim(runtime), "spec", "accessModes") == ["ReadWriteOnce"]:
        message = f"ReadWriteOnce can be mounted on one machine, and there are {nodes} nodes; use ReadWriteMany"
        yield warning("V7", f"{_CLAIMS}[{VOLUME}].spec.accessModes", message)


def _dependencies(job: ReplicatedJob, earlier: Sequence[str]) -> Findings:
    path = f"{job.path}.dependsOn"
    names = [str(each.get("name")) for each in job.depends_on]
    if names and not earlier:
        yield error("V8", path, "the first job cannot wait for another; put those it waits for before it")
        return
    for name in [each for each in names if each not in earlier]:
        yield error("V8", path, f"{name!r} is no job before this one; those are {', '.join(earlier)}")
    if len(set(names)) < len(names) or len(names) > _MAX_DEPENDENCIES:
        yield error("V8", path, f"names at most {_MAX_DEPENDENCIES} jobs, each once; got {', '.join(names)}")
    for each in job.depends_on:
        if each.get("status") not in ("Ready", "Complete"):
            yield error("V8", path, f"status must be Ready or Complete, got {each.get('status')!r}")


def _completed_before(job: ReplicatedJob, jobs: Sequence[ReplicatedJob]) -> set[str]:
    """Names of the jobs that have ended well when a job begins, also through others that it waits for."""
    known = {each.name: each for each in jobs[: jobs.index(job)]}
    found: set[str] = set()
    for each in job.depends_on:
        name = str(each.get("name"))
        if each.get("status") == "Complete":
            found.add(name)
        if name in known:
            found |= _completed_before(known[name], jobs)
    return found


def _launcher_waits(launcher: ReplicatedJob, node: ReplicatedJob) -> Findings:
    ready = {"name": "node", "status": "Ready"} in [dict(each) for each in launcher.depends_on]
    if not ready:
        message = "should wait for the nodes: dependsOn {name: node, status: Ready}"
        yield warning("V9", f"{launcher.path}.dependsOn", message)
    elif "readinessProbe" not in (node.container("node") or {"readinessProbe": None}):
        message = "has no readinessProbe, so that a node counts as ready before its SSH server listens"
        yield warning("V9", f"{node.pod_path}.containers[node]", message)
