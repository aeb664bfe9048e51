"""Parsing of raw PyTorchJobs, of Jobs of initialize-only requests, and of their pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from sys import intern

from trainer_core.k8s import initializer_job, job_state, pod_state, resources
from trainer_core.k8s.job_state import DEADLINE_EXCEEDED, Condition, JobState, ReplicatedJobStatus
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.pod_state import PodState
from trainer_core.k8s.resources import ApiResource
from trainer_core.k8s.runtimes import DATASET_INITIALIZER, MODEL_INITIALIZER, NODE
from trainer_core.model.jobs import COMPLETE, FAILED, SUSPENDED

PYTORCH_JOBS = ApiResource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
#: Container that trains. The operator requires this name and adds the rendezvous port to it.
MAIN_CONTAINER = "pytorch"
#: Labels of a pod: name of its PyTorchJob, and index among the masters or workers.
JOB_NAME_LABEL = "training.kubeflow.org/job-name"
_REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"
_BACKEND = "training-operator"
#: Conditions of a PyTorchJob, by precedence: Failed and Succeeded can both be true for a moment.
_CONDITIONS = {"Failed": FAILED, "Succeeded": COMPLETE, "Suspended": SUSPENDED}
#: The reason of an exceeded deadline is that of every failure; only the message differs.
_DEADLINE_MESSAGE = "active longer than specified deadline"
#: Variables in which the operator passes the rank of a node. The workers of an elastic job have none of them.
_RANK_VARIABLES = ("PET_NODE_RANK", "RANK")


def parse_job(raw: RawObject) -> JobState:
    """Parse a raw PyTorchJob, or the raw batch/v1 Job of an initialize-only request."""
    if raw.get("kind") == resources.JOBS.kind:
        return initializer_job.parse_job(raw, _BACKEND)
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    policy, replica_specs = spec.get("runPolicy") or {}, spec.get("pytorchReplicaSpecs") or {}
    pod_spec = _get_pod_spec(replica_specs)
    num_nodes = sum(int(replica_spec.get("replicas", 1)) for replica_spec in replica_specs.values())
    return job_state.build_job_state(
        raw,
        _BACKEND,
        PYTORCH_JOBS,
        suspend=bool(policy.get("suspend")),
        restart_limit=policy.get("backoffLimit"),
        conditions=tuple(_parse_conditions(status.get("conditions") or ())),
        replicated_jobs=(_build_status(status.get("replicaStatuses") or {}, num_nodes),),
        num_nodes=num_nodes,
        device=_parse_device(pod_spec),
        initializers=_list_initializers(pod_spec),
        active_deadline_seconds=policy.get("activeDeadlineSeconds"),
        completes_with_first_node=True,
    )


def parse_pod(raw: RawObject) -> PodState:
    """Parse a raw pod of a PyTorchJob or of a Job."""
    labels = raw["metadata"].get("labels") or {}
    if JOB_NAME_LABEL not in labels:
        return pod_state.parse_pod(raw)
    step = f"{NODE}-{_get_rank(raw, labels)}"
    return pod_state.parse_pod(raw, main=MAIN_CONTAINER, job=labels[JOB_NAME_LABEL], step=step)


def _get_rank(raw: RawObject, labels: Mapping[str, str]) -> int:
    env = {
        entry["name"]: str(entry.get("value"))
        for container in _list_main_containers(raw["spec"])
        for entry in container.get("env") or ()
    }
    candidates = (*(env.get(name, "") for name in _RANK_VARIABLES), str(labels.get(_REPLICA_INDEX_LABEL, "")))
    return next((int(text) for text in candidates if text.isdecimal()), 0)


def _parse_conditions(raws: Iterable[RawObject]) -> Iterator[Condition]:
    conditions = {raw.get("type"): job_state.parse_condition(raw) for raw in raws if raw.get("status") == "True"}
    for upstream_type, condition_type in _CONDITIONS.items():
        if upstream_type in conditions:
            condition = conditions[upstream_type]
            late = condition_type == FAILED and _DEADLINE_MESSAGE in condition.message
            yield replace(condition, type=condition_type, reason=DEADLINE_EXCEEDED if late else condition.reason)
        if upstream_type == "Failed" and upstream_type in conditions:
            return


def _build_status(raw: RawObject, num_nodes: int) -> ReplicatedJobStatus:
    """Build the status of all nodes as one replicated job, which is ready when every node is active."""
    active = sum(status.get("active") or 0 for status in raw.values())
    succeeded = sum(status.get("succeeded") or 0 for status in raw.values())
    return ReplicatedJobStatus(NODE, int(0 < num_nodes <= active + succeeded), int(0 < num_nodes <= succeeded))


def _get_pod_spec(replica_specs: RawObject) -> RawObject:
    """Return the pod spec of the first replica type; this backend renders the same for all."""
    replica_spec: RawObject = next(iter(replica_specs.values()), {})
    pod_spec: RawObject = (replica_spec.get("template") or {}).get("spec") or {}
    return pod_spec


def _list_main_containers(pod_spec: RawObject) -> Iterator[RawObject]:
    return (container for container in pod_spec.get("containers") or () if container.get("name") == MAIN_CONTAINER)


def _parse_device(pod_spec: RawObject) -> tuple[str, str] | None:
    container = next(_list_main_containers(pod_spec), {})
    return job_state.parse_device((container.get("resources") or {}).get("limits") or {})


def _list_initializers(pod_spec: RawObject) -> tuple[str, ...]:
    names = {container.get("name") for container in pod_spec.get("initContainers") or ()}
    return tuple(intern(name) for name in (DATASET_INITIALIZER, MODEL_INITIALIZER) if name in names)
