"""Admission webhooks, Trainer's above all: what they fill in, and what they refuse in which words (specs A6)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fake_cluster import answers, pytorch_admission
from fake_cluster.building import ANCESTOR, containers_of, patches, steps_of
from fake_cluster.clock import micro_time
from fake_cluster.store import Store
from fake_cluster.writing import Intent
from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, JOBSETS, TRAINING_RUNTIMES, TRAINJOBS, ApiResource

Raw = Mapping[str, Any]
_OURS = {TRAINING_RUNTIMES.kind: TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES.kind: CLUSTER_TRAINING_RUNTIMES}
_PATCHES = "spec.runtimePatches"
_OWN_CONTAINERS = ("dataset-initializer", "model-initializer", "node")
_MANAGER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/.+")
_QUEUE = "kueue.x-k8s.io/queue-name"
_RESERVED = {
    "torch": {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"},
    "mpi": {
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_plm_rsh_args",
        "OMPI_MCA_orte_keep_fqdn_hostnames",
        "OMPI_MCA_orte_set_default_slots",
    },
    "xgboost": {"DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"},
}
_SUPPORT = "trainer.kubeflow.org/support"
_UNCHECKED = "trainer.kubeflow.org/webhook-validation"


class Admission:
    """The webhooks."""

    def __init__(self, store: Store, kueue: bool = False) -> None:
        #: Whether Kueue is installed: a TrainJob with a queue is suspended when it is created.
        self.kueue = kueue
        self._store = store

    def check(self, intent: Intent) -> None:
        """Fill in and refuse, as the webhooks do."""
        if intent.part:
            return
        if intent.kind == TRAINJOBS:
            self._mutate(intent)
            problems = list(self._trainjob(intent))
        elif intent.kind in _OURS.values():
            problems = _runtime(intent)
        elif intent.kind == PYTORCH_JOBS:
            self._pytorch_job(intent)
            return
        else:
            return
        if problems:
            raise answers.denied(f"validator.{intent.kind.kind.lower()}.trainer.kubeflow.org", problems)

    def _pytorch_job(self, intent: Intent) -> None:
        if intent.old is None:
            pytorch_admission.defaults(intent.new, self.kueue)
        if problems := list(pytorch_admission.problems(intent.new, intent.old)):
            raise answers.denied(pytorch_admission.WEBHOOK, problems)

    def _mutate(self, intent: Intent) -> None:
        """Stamp patches with the time, and suspend what Kueue is going to admit."""
        metadata, spec = intent.new["metadata"], intent.new["spec"]
        before = {patch["manager"]: patch for patch in (intent.old or {}).get("spec", {}).get("runtimePatches") or ()}
        for patch in spec.get("runtimePatches") or ():
            old = before.get(patch["manager"], {})
            if patch.get("trainingRuntimeSpec") != old.get("trainingRuntimeSpec") or "time" not in old:
                patch["time"] = micro_time().partition(".")[0] + "Z"
            else:
                patch["time"] = old["time"]
        if self.kueue and intent.old is None and (metadata.get("labels") or {}).get(_QUEUE):
            spec["suspend"] = True

    def _trainjob(self, intent: Intent) -> Iterator[str]:
        raw, spec = intent.new, intent.new["spec"]
        ref = spec["runtimeRef"]
        kind = _OURS.get(ref.get("kind", CLUSTER_TRAINING_RUNTIMES.kind))
        if kind is None or ref.get("apiGroup", kind.group) != kind.group:
            yield f"unsupported runtime: {ref.get('kind')}.{ref.get('apiGroup')}"
            return
        runtime = self._store.find(kind, raw["metadata"]["namespace"] if kind.namespaced else None, ref["name"])
        if runtime is None:
            yield _missing(kind, ref)
            return
        labels = runtime.metadata.get("labels") or {}
        if labels.get(_SUPPORT) == "deprecated":
            intent.warnings.append(f"Referenced {kind.kind} {ref['name']} is deprecated")
        template, policy = runtime.raw["spec"]["template"]["spec"], runtime.raw["spec"].get("mlPolicy") or {}
        yield from _initializers(spec, template)
        yield from _patches(spec, template)
        yield from _reserved(spec, policy)
        yield from _mpi(spec, policy, template)
        yield from self._patch_changes(intent)

    def _patch_changes(self, intent: Intent) -> Iterator[str]:
        """Patches may only change while nothing runs."""
        if intent.old is None:
            return
        old, new = intent.old["spec"], intent.new["spec"]
        if old.get("runtimePatches") == new.get("runtimePatches"):
            return
        if not old.get("suspend") and not new.get("suspend"):
            yield f"{_PATCHES}: Forbidden: RuntimePatches can only be modified when the TrainJob is suspended"
        metadata = intent.new["metadata"]
        jobset = self._store.find(JOBSETS, metadata["namespace"], metadata["name"])
        statuses = (jobset.raw.get("status") or {}).get("replicatedJobsStatus") or () if jobset else ()
        if any(status["active"] for status in statuses):
            yield f"{_PATCHES}: Forbidden: RuntimePatches cannot be modified when the JobSet's ReplicatedJob is active"


def _invalid(field: str, value: Any, why: str) -> str:
    return f"{field}: Invalid value: {json.dumps(value)}: {why}"


def _missing(kind: ApiResource, ref: Raw) -> str:
    name = kind.kind[0].lower() + kind.kind[1:]
    absent = f"{kind.kind}.{kind.group} {json.dumps(ref['name'])} not found"
    why = f"{absent}: specified {name} must be created before the TrainJob is created"
    return _invalid("spec.runtimeRef", ref, why)


def _initializers(spec: Raw, template: Raw) -> Iterator[str]:
    for role, config in (("dataset", "datasetConfig"), ("model", "modelConfig")):
        if not (spec.get("initializer") or {}).get(role):
            continue
        name, when = f"{role}-initializer", f"when trainJob is configured with input {config}"
        step = next((step for step in steps_of(template) if step["name"] == name), None)
        if step is None:
            yield _invalid("spec.runtimeRef", spec["runtimeRef"], f"must have {name} job {when}")
            continue
        containers = containers_of(step, name)
        if not containers:
            why = f"must have container with name - {name} in the {name} job"
            yield _invalid("spec.runtimeRef", spec["runtimeRef"], why)
        elif not any(mount["name"] == "initializer" for mount in containers[0].get("volumeMounts") or ()):
            why = f"must have volumeMount with name - initializer in the {name} job {when}"
            yield _invalid("spec.runtimeRef", spec["runtimeRef"], why)


def _patches(spec: Raw, template: Raw) -> Iterator[str]:
    for patch in spec.get("runtimePatches") or ():
        if not _MANAGER.fullmatch(patch["manager"]):
            yield _invalid(f"{_PATCHES}.manager", patch["manager"], "must be a domain-prefixed path")
    known = {step["name"]: step for step in steps_of(template)}
    for patch in patches(spec):
        for step in steps_of(patch.get("spec") or {}):
            if step["name"] not in known:
                yield _invalid(_PATCHES, step["name"], "must not have job that does not exist in the runtime")
            else:
                yield from _patched_containers(step, known[step["name"]])


def _patched_containers(patch: Raw, step: Raw) -> Iterator[str]:
    pod = ((patch.get("template") or {}).get("spec") or {}).get("template") or {}
    names = {container["name"] for container in containers_of(step)}
    for container in (pod.get("spec") or {}).get("containers") or ():
        if container["name"] not in names:
            yield _invalid(
                _PATCHES, container["name"], "must not have container that does not exist in the runtime job"
            )
        if container.get("env") and container["name"] in _OWN_CONTAINERS:
            why = f"must not have envs for the {', '.join(_OWN_CONTAINERS)} containers"
            yield _invalid(_PATCHES, container["name"], why)


def _reserved(spec: Raw, policy: Raw) -> Iterator[str]:
    used = {entry["name"] for entry in (spec.get("trainer") or {}).get("env") or ()}
    for name, reserved in _RESERVED.items():
        if policy.get(name) is not None and used & reserved:
            wrong = " ".join(sorted(used & reserved))
            why = f"must not have reserved envs, invalid envs configured: [{wrong}]"
            yield _invalid("spec.trainer.env", spec["trainer"]["env"], why)


def _mpi(spec: Raw, policy: Raw, template: Raw) -> Iterator[str]:
    mpi, nodes = policy.get("mpi") or {}, (spec.get("trainer") or {}).get("numNodes") or 1
    both = {"launcher", "node"} <= {step["name"] for step in steps_of(template)}
    if mpi.get("runLauncherAsNode") and nodes > 1 and not both:
        why = (
            "must have 1 when MPI trainingRuntime with enabled runLauncherAsNode does not have either launcher and node"
        )
        yield _invalid("spec.trainer.numNodes", nodes, why)


def _runtime(intent: Intent) -> list[str]:
    labels = intent.new["metadata"].get("labels") or {}
    namespaced_update = intent.kind == TRAINING_RUNTIMES and intent.old is not None
    if labels.get(_UNCHECKED) == "disabled" or namespaced_update:
        return []
    if labels.get(_SUPPORT) == "deprecated" and intent.old is None:
        intent.warnings.append(f"{intent.kind.kind} {intent.new['metadata'].get('name')} is deprecated")
    steps = steps_of(intent.new["spec"]["template"]["spec"])
    return [problem for index, step in enumerate(steps) for problem in _step(step, index)]


def _step(step: Raw, index: int) -> Iterator[str]:
    ancestor = ((step["template"].get("metadata") or {}).get("labels") or {}).get(ANCESTOR)
    place = f"spec.template.spec.replicatedJobs[{index}]"
    if ancestor not in ("trainer", "dataset-initializer", "model-initializer"):
        return
    if step.get("replicas", 1) != 1:
        yield _invalid(f"{place}.replicas", step["replicas"], "always must be 1")
    if not containers_of(step, "node" if ancestor == "trainer" else ancestor):
        why = f"must contain the required container for the ancestor: {ancestor}"
        yield _invalid(f"{place}.template.spec.template.spec.containers", ancestor, why)
