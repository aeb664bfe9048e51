"""The Training Operator: PyTorchJobs become pods, until their master is done or too much has failed (specs C4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fake_cluster import clock, pytorch_pods
from fake_cluster.conditions import condition, is_true
from fake_cluster.history import Record
from fake_cluster.recorder import Recorder
from fake_cluster.store import Store, seconds_of
from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.k8s.resources import PODS

_CONTROLLER = "pytorchjob-controller"
_AGAIN = 0.05
_MULTIKUEUE = "kueue.x-k8s.io/multikueue"
#: Ended by a signal from outside, as the operator sees it: worth another pod where the policy is ExitCode.
_RETRYABLE = (130, 137, 138, 143)
_REPLACE_EACH_OTHER = {"Running": "Restarting", "Restarting": "Running"}
_UNFINISHED = ("Pending", "Running")


class PyTorchJobs:
    """Reconciles PyTorchJobs."""

    def __init__(self, store: Store, recorder: Recorder) -> None:
        #: Why the pods of a job cannot be created, if they cannot.
        self.quota: Callable[[Record], str | None] = lambda _: None
        self._store = store
        self._recorder = recorder

    def reconcile(self, record: Record) -> float | None:
        policy = record.raw["spec"].get("runPolicy") or {}
        if record.metadata.get("deletionTimestamp") or policy.get("managedBy") == _MULTIKUEUE:
            return None
        pods = [pod for kind, pod in self._store.children(record) if kind == PODS]
        if _is_finished(record.raw):
            return self._clean_up(record, policy, pods)
        if condition(record.raw, "Created") is None:
            record = self._say(record, "Created", True, "Created", "PyTorchJob {name} is created.")
        if policy.get("suspend"):
            self._suspend(record, pods)
            return None
        record = self._start(record)
        if why := _limit(record.raw, policy, pods):
            self._finish(record, "Failed", f"Job {record.key[1]} has failed because {why}")
            return None
        again = self._ensure_pods(record, pods)
        self._judge(record)
        return again if again is not None else _rest(record.raw, policy)

    def _clean_up(self, record: Record, policy: Mapping[str, Any], pods: list[Record]) -> float | None:
        what = policy.get("cleanPodPolicy", "None")
        for pod in pods:
            if what == "All" or (what == "Running" and _phase(pod) in _UNFINISHED):
                self._remove(record, pod)
        if is_true(record.raw, "Succeeded"):
            self._store.change(PYTORCH_JOBS, *record.key, _count_as_succeeded, "status")
        seconds = policy.get("ttlSecondsAfterFinished")
        if seconds is None:
            return None
        rest = seconds_of(record.raw["status"]["completionTime"]) + float(seconds) - clock.read()
        if rest <= 0:
            self._store.delete(PYTORCH_JOBS, *record.key)
        return max(rest, 0) or None

    def _suspend(self, record: Record, pods: list[Record]) -> None:
        for pod in pods:
            self._remove(record, pod)
        text = "PyTorchJob {name} is suspended."
        if is_true(record.raw, "Running"):
            record = self._say(record, "Running", False, "Suspended", text)
        if not is_true(record.raw, "Suspended"):
            self._say(record, "Suspended", True, "Suspended", text, tell=True)
        self._store.change(PYTORCH_JOBS, *record.key, _none_is_active, "status")

    def _start(self, record: Record) -> Record:
        resumed = is_true(record.raw, "Suspended")
        if resumed:
            record = self._say(record, "Suspended", False, "Resumed", "PyTorchJob {name} is resumed.", tell=True)

        def start(raw: dict[str, Any]) -> None:
            if resumed or "startTime" not in raw["status"]:
                raw["status"]["startTime"] = clock.now()

        return self._store.change(PYTORCH_JOBS, *record.key, start, "status") or record

    def _ensure_pods(self, record: Record, pods: list[Record]) -> float | None:
        """Make the pods that are missing, and remove those that are to be replaced."""
        there = {(pytorch_pods.type_of(pod.raw), pytorch_pods.index_of(pod.raw)): pod for pod in pods}
        for kind, (spec, count) in pytorch_pods.replicas_of(record.raw).items():
            for index in range(count):
                found = there.get((kind.lower(), index))
                if found is None and not self._made(record, kind, index):
                    return _AGAIN
                if found is not None and _has_to_be_replaced(found, spec):
                    text = f"job {record.key[1]} is restarting because {kind} replica(s) failed."
                    record = self._say(record, "Restarting", True, "Restarting", text, tell=True)
                    self._remove(record, found)
        return None

    def _made(self, record: Record, kind: str, index: int) -> bool:
        if quota := self.quota(record):
            self._recorder.record(record.raw, "FailedCreatePod", quota, _CONTROLLER)
            return False
        pod = pytorch_pods.pod(record.raw, kind, index)
        name = pod["metadata"]["name"]
        if self._store.find(PODS, record.key[0], name):
            # That of an earlier job of this name, which is about to go.
            return False
        self._store.create(PODS, pod)
        self._recorder.record(record.raw, "SuccessfulCreatePod", f"Created pod: {name}", _CONTROLLER)
        return True

    def _judge(self, record: Record) -> None:
        """Set the status of the job from its pods; it succeeds with its master, or else with all workers."""
        pods = [pod for kind, pod in self._store.children(record) if kind == PODS]
        counts = {kind: _counts(record, kind, pods) for kind in pytorch_pods.replicas_of(record.raw)}
        changed = self._store.change(PYTORCH_JOBS, *record.key, lambda raw: _write(raw, counts), "status")
        record = changed or record
        leads = "Master" if "Master" in counts else "Worker"
        if counts[leads].get("active"):
            record = self._say(record, "Running", True, "Running", "PyTorchJob {name} is running.")
        if counts[leads].get("succeeded") == pytorch_pods.replicas_of(record.raw)[leads][1]:
            self._finish(record, "Succeeded", f"PyTorchJob {record.key[1]} is successfully completed.")
            return
        for kind, numbers in counts.items():
            failed = numbers.get("failed", 0)
            final = pytorch_pods.replicas_of(record.raw)[kind][0].get("restartPolicy", "OnFailure")
            if failed and final in ("Never", "ExitCode"):
                text = f"PyTorchJob {record.key[1]} is failed because {failed} {kind} replica(s) failed."
                self._finish(record, "Failed", text)
                return

    def _finish(self, record: Record, kind: str, text: str) -> None:
        def finish(raw: dict[str, Any]) -> None:
            raw["status"].setdefault("completionTime", clock.now())

        self._store.change(PYTORCH_JOBS, *record.key, finish, "status")
        self._say(record, kind, True, kind, text, tell=True)

    def _say(self, record: Record, kind: str, status: bool, reason: str, text: str, tell: bool = False) -> Record:
        """Set a condition, and record an event of the same words."""
        reason, text = f"PyTorchJob{reason}", text.format(name=record.key[1])
        if tell:
            self._recorder.record(record.raw, reason, text, _CONTROLLER)
        changed = self._store.change(
            PYTORCH_JOBS, *record.key, lambda raw: _set_condition(raw, kind, status, reason, text), "status"
        )
        return changed or record

    def _remove(self, record: Record, pod: Record) -> None:
        if not pod.metadata.get("deletionTimestamp"):
            self._store.delete(PODS, *pod.key)
            self._recorder.record(record.raw, "SuccessfulDeletePod", f"Deleted pod: {pod.key[1]}", _CONTROLLER)


def _set_condition(raw: dict[str, Any], kind: str, status: bool, reason: str, message: str) -> None:
    """Running and Restarting replace each other; a job that has ended no longer runs."""
    known = raw.setdefault("status", {}).setdefault("conditions", [])
    old = condition(raw, kind)
    if old is not None and (old["status"], old["reason"]) == (str(status), reason):
        return
    kept = [one for one in known if one["type"] not in (kind, _REPLACE_EACH_OTHER.get(kind))]
    if kind in ("Succeeded", "Failed"):
        kept = [{**one, "status": "False"} if one["type"] == "Running" else one for one in kept]
    times = {"lastUpdateTime": clock.now(), "lastTransitionTime": clock.now()}
    new = {"type": kind, "status": str(status), "reason": reason, "message": message, **times}
    raw["status"]["conditions"] = [*kept, new]


def _is_finished(raw: Mapping[str, Any]) -> bool:
    return is_true(raw, "Succeeded") or is_true(raw, "Failed")


def _limit(raw: Mapping[str, Any], policy: Mapping[str, Any], pods: Iterable[Record]) -> str | None:
    """Return which limit a job has reached, if any."""
    most = policy.get("backoffLimit")
    restarts = sum(_restarts(pod) for pod in pods if _phase(pod) in _UNFINISHED)
    if most is not None and (restarts > 0 if most == 0 else restarts >= most):
        return "it has reached the specified backoff limit"
    rest = _rest(raw, policy)
    return "it was active longer than specified deadline" if rest is not None and rest <= 0 else None


def _rest(raw: Mapping[str, Any], policy: Mapping[str, Any]) -> float | None:
    """Return how many seconds are left until the deadline; None where there is none."""
    seconds, start = policy.get("activeDeadlineSeconds"), raw["status"].get("startTime")
    return None if seconds is None or start is None else seconds_of(start) + float(seconds) - clock.read()


def _has_to_be_replaced(pod: Record, spec: Mapping[str, Any]) -> bool:
    if _phase(pod) != "Failed" or pod.metadata.get("deletionTimestamp"):
        return False
    policy = spec.get("restartPolicy", "OnFailure")
    return policy in ("OnFailure", "Always") or (policy == "ExitCode" and _exit_code(pod) in _RETRYABLE)


def _counts(record: Record, kind: str, pods: Iterable[Record]) -> dict[str, Any]:
    """Return the replicaStatus of a type: without zeros, as the operator writes it."""
    mine = [pod for pod in pods if pytorch_pods.type_of(pod.raw) == kind.lower()]
    running = [pod for pod in mine if _phase(pod) == "Running" and not pod.metadata.get("deletionTimestamp")]
    numbers = {
        "active": len(running),
        "succeeded": len([pod for pod in mine if _phase(pod) == "Succeeded"]),
        "failed": len([pod for pod in mine if _phase(pod) == "Failed"]),
    }
    labels = {pytorch_pods.JOB_NAME: record.key[1], pytorch_pods.REPLICA_TYPE: kind.lower()}
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    return {**{name: number for name, number in numbers.items() if number}, "selector": selector}


def _write(raw: dict[str, Any], counts: Mapping[str, Any]) -> None:
    raw["status"]["replicaStatuses"] = dict(counts)


def _count_as_succeeded(raw: dict[str, Any]) -> None:
    for numbers in (raw["status"].get("replicaStatuses") or {}).values():
        if active := numbers.pop("active", 0):
            numbers["succeeded"] = numbers.get("succeeded", 0) + active


def _none_is_active(raw: dict[str, Any]) -> None:
    for numbers in (raw["status"].get("replicaStatuses") or {}).values():
        numbers.pop("active", None)


def _phase(pod: Record) -> str:
    return str((pod.raw.get("status") or {}).get("phase", "Pending"))


def _statuses(pod: Record) -> Iterable[Mapping[str, Any]]:
    status = pod.raw.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _restarts(pod: Record) -> int:
    return sum(status.get("restartCount", 0) for status in _statuses(pod))


def _exit_code(pod: Record) -> int | None:
    states = (one.get("state") or {} for one in _statuses(pod) if one["name"] == "pytorch")
    return next((state["terminated"]["exitCode"] for state in states if "terminated" in state), None)
