"""Run:ai: workloads become pods, one for a TrainingWorkload and a PyTorchJob's for a DistributedWorkload (specs B)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fake_cluster import clock, runai_pods
from fake_cluster.conditions import is_true
from fake_cluster.history import Record
from fake_cluster.recorder import Recorder
from fake_cluster.store import Store, seconds_of
from trainer_core.backends.runai.parse import DISTRIBUTED_WORKLOADS, TRAINING_WORKLOADS
from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.k8s.resources import PODS, ApiResource

_CONTROLLER = "workload-controller"
_GLOBAL = "runai"
_BACKOFF_LIMIT = 6
_ENDED = ("Completed", "Failed")
_UNFINISHED = ("Pending", "Running")


class Workloads:
    """Controller of Run:ai workloads."""

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder

    def reconcile_training(self, record: Record) -> float | None:
        spec = self._with_base(record)
        if spec.get("usage") == "Template" or record.metadata.get("deletionTimestamp"):
            return None
        pods = [pod for kind, pod in self._store.children(record) if kind == PODS]
        if _phase(record) in _ENDED:
            return self._delete_after(TRAINING_WORKLOADS, record, spec)
        if runai_pods.value(spec, "active", True) is False:
            for pod in pods:
                if not pod.metadata.get("deletionTimestamp"):
                    self._store.delete(PODS, *pod.key)
            self._say(TRAINING_WORKLOADS, record, "Stopped", [])
            return None
        failed = [pod for pod in pods if _phase(pod) == "Failed"]
        if any(_phase(pod) == "Succeeded" for pod in pods):
            self._say(TRAINING_WORKLOADS, record, "Completed", pods)
        elif len(failed) > runai_pods.value(spec, "backoffLimit", _BACKOFF_LIMIT):
            self._say(TRAINING_WORKLOADS, record, "Failed", pods, f"{len(failed)} pods failed")
        elif len(failed) == len(pods):
            pod = self._store.create(PODS, runai_pods.pod(record.raw, spec, len(failed)))
            self._recorder.record(record.raw, "SuccessfulCreate", f"Created pod: {pod.key[1]}", _CONTROLLER)
            self._say(TRAINING_WORKLOADS, record, "Pending", pods)
        else:
            running = any(_phase(pod) == "Running" for pod in pods)
            self._say(TRAINING_WORKLOADS, record, "Running" if running else "Pending", pods)
        return None

    def reconcile_distributed(self, record: Record) -> float | None:
        if record.metadata.get("deletionTimestamp"):
            return None
        spec = record.raw["spec"]
        if _phase(record) in _ENDED:
            return self._delete_after(DISTRIBUTED_WORKLOADS, record, spec)
        job = next((job for kind, job in self._store.children(record) if kind == PYTORCH_JOBS), None)
        if job is None:
            job = self._store.create(PYTORCH_JOBS, runai_pods.pytorch_job(record.raw))
            self._recorder.record(record.raw, "SuccessfulCreate", f"Created PyTorchJob: {job.key[1]}", _CONTROLLER)
        stopped = runai_pods.value(spec, "active", True) is False
        if bool(job.raw["spec"]["runPolicy"].get("suspend")) != stopped:
            self._store.change(PYTORCH_JOBS, *job.key, lambda raw: raw["spec"]["runPolicy"].update(suspend=stopped))
        pods = [pod for kind, pod in self._store.children(job) if kind == PODS]
        phase = _phase_of(job.raw)
        why = "a node failed" if phase == "Failed" else ""
        self._say(DISTRIBUTED_WORKLOADS, record, phase, pods, why)
        return None

    def _with_base(self, record: Record) -> dict[str, Any]:
        spec, name = record.raw["spec"], record.raw["spec"].get("baseWorkload")
        if not name:
            return dict(spec)
        places = (record.key[0], _GLOBAL)
        found = (self._store.find(TRAINING_WORKLOADS, place, name) for place in places)
        base = next((one.raw["spec"] for one in found if one), {})
        return runai_pods.inherited(base, spec)

    def _delete_after(self, kind: ApiResource, record: Record, spec: Mapping[str, Any]) -> float | None:
        seconds = runai_pods.value(spec, "autoDeletionTimeAfterCompletionSeconds")
        if seconds is None:
            return None
        rest = seconds_of(record.raw["status"]["completedAt"]) + float(seconds) - clock.read()
        if rest <= 0:
            self._store.delete(kind, *record.key)
        return max(rest, 0) or None

    def _say(self, kind: ApiResource, record: Record, phase: str, pods: list[Record], message: str = "") -> None:
        running = len([pod for pod in pods if _phase(pod) == "Running"])
        if (_phase(record), (record.raw.get("status") or {}).get("runningPods")) == (phase, running):
            return

        def write(raw: dict[str, Any]) -> None:
            raw["status"] = {
                "phase": phase,
                "runningPods": running,
                **({"phaseMessage": message} if message else {}),
                **({"completedAt": clock.now()} if phase in _ENDED else {}),
            }

        self._store.change(kind, *record.key, write, "status")


def _phase_of(job: Mapping[str, Any]) -> str:
    """The phase of a workload by the conditions of its job."""
    for condition, phase in (("Failed", "Failed"), ("Succeeded", "Completed"), ("Suspended", "Stopped")):
        if is_true(job, condition):
            return phase
    statuses = (job.get("status") or {}).get("replicaStatuses") or {}
    wanted = sum(int(replica.get("replicas", 1)) for replica in job["spec"]["pytorchReplicaSpecs"].values())
    return "Running" if sum(one.get("active", 0) for one in statuses.values()) >= wanted else "Pending"


def _phase(record: Record) -> str:
    return str((record.raw.get("status") or {}).get("phase", ""))
