"""A pod that is only played: what a scheduler, a kubelet and a node controller would do to it, move by move."""

from __future__ import annotations

from typing import Any

from fake_cluster.history import Record
from fake_cluster.kubelet import NODE
from fake_cluster.pod_status import PodState, running, terminated, waiting
from fake_cluster.podlog import Logs
from fake_cluster.recorder import Recorder
from fake_cluster.store import Store
from trainer_core.k8s.resources import PODS


class Actor:
    """One pod, and its first container."""

    def __init__(self, store: Store, recorder: Recorder, logs: Logs, pod: Record) -> None:
        self.pod = pod
        self.state = PodState(pod.raw)
        self.container = self.state.containers[0]
        labels = pod.metadata.get("labels") or {}
        self.job = str(labels.get("jobset.sigs.k8s.io/jobset-name") or labels.get("training.kubeflow.org/job-name", ""))
        self._store = store
        self._recorder = recorder
        self._logs = logs

    @property
    def is_there(self) -> bool:
        found = self._store.find(PODS, *self.pod.key)
        return found is not None and found.metadata["uid"] == self.pod.metadata["uid"]

    def schedule(self) -> None:
        self.state.scheduled = True
        self._store.change(PODS, *self.pod.key, lambda raw: raw["spec"].update(nodeName=NODE))
        namespace, name = self.pod.key
        self.event_v1("Scheduled", f"Successfully assigned {namespace}/{name} to {NODE}", "Binding")
        self.write()

    def stay_unscheduled(self, message: str) -> None:
        self.state.scheduled = False
        self.state.set("PodScheduled", False, "Unschedulable", message)
        self.write()
        self.event_v1("FailedScheduling", message, "Scheduling")

    def wait(self, reason: str, message: str | None = None) -> None:
        self.container.state = waiting(reason, message)
        self.write()

    def run(self, *lines: str) -> None:
        self.container.state = running()
        log = self._logs.start(self.pod.metadata["uid"], self.container.name)
        for line in lines:
            log.write(line.encode())
        self.event("Started", f"Started container {self.container.name}")
        self.write()

    def exit(self, code: int, reason: str | None = None, message: str | None = None) -> None:
        started = self.container.state.get("running", {}).get("startedAt")
        self.container.state = terminated(code, started, reason, message)
        if log := self._logs.current(self.pod.metadata["uid"], self.container.name):
            log.end()
        self.write()

    def back_off(self, duration: str) -> None:
        namespace, name = self.pod.key
        about = f"restarting failed container={self.container.name} pod={name}_{namespace}({self.pod.metadata['uid']})"
        self.container.last = {"terminated": self.container.state["terminated"]}
        self.event("BackOff", f"Back-off {about}")
        self.wait("CrashLoopBackOff", f"back-off {duration} {about}")

    def restart(self, *lines: str) -> None:
        self.container.restart()
        self.run(*lines)

    def finish(self) -> None:
        self.state.ended = True
        self.write()

    def disrupt(self, reason: str, message: str) -> None:
        """Set the condition DisruptionTarget, as the eviction API does."""
        self.state.set("DisruptionTarget", True, reason, message)
        self.write()

    def vanish(self) -> None:
        if self.is_there:
            self._store.delete(PODS, *self.pod.key, grace=0)

    def event(self, reason: str, message: str, component: str = "kubelet") -> None:
        self._recorder.record(self.pod.raw, reason, message, component)

    def event_v1(self, reason: str, note: str, action: str) -> None:
        """Record an event about it as the scheduler does."""
        self._recorder.record_v1(self.pod.raw, reason, note, "default-scheduler", action)

    def write(self) -> None:
        status = self.state.render()

        def put(raw: dict[str, Any]) -> None:
            raw["status"] = status

        if self.is_there:
            self._store.change(PODS, *self.pod.key, put, "status")
