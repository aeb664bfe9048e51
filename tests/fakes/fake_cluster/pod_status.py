"""The status of a pod, as a kubelet writes it: states of containers, phase, conditions. Pure but for the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fake_cluster.clock import now

Raw = dict[str, Any]


def waiting(reason: str, message: str | None = None) -> Raw:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def running() -> Raw:
    return {"running": {"startedAt": now()}}


def terminated(code: int, started: str | None = None, reason: str | None = None, message: str | None = None) -> Raw:
    told = {"message": message} if message else {}
    reason = reason or ("Completed" if code == 0 else "Error")
    return {
        "terminated": {"exitCode": code, "reason": reason, **told, "startedAt": started or now(), "finishedAt": now()}
    }


@dataclass
class ContainerState:
    """One container of a pod."""

    name: str
    image: str
    #: Waiting, running or terminated.
    state: Raw = field(default_factory=lambda: waiting("ContainerCreating"))
    #: How the run before ended.
    last: Raw = field(default_factory=dict)
    restarts: int = 0

    @property
    def exit_code(self) -> int | None:
        return self.state.get("terminated", {}).get("exitCode")

    def restart(self) -> None:
        self.last = {"terminated": self.state["terminated"]} if "terminated" in self.state else self.last
        self.restarts += 1

    def render(self) -> Raw:
        is_running = "running" in self.state
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "" if "waiting" in self.state and not self.restarts else f"{self.image}@sha256:{'0' * 64}",
            "state": self.state,
            "lastState": self.last,
            "ready": is_running,
            "started": is_running,
            "restartCount": self.restarts,
        }


class PodState:
    """A pod as its node sees it.

    Attributes:
        containers: Its containers.
        inits: Its init containers.
        ended: Nothing of it is started again.
        scheduled: It has a node.
        reason: Why a kubelet, or a controller on its behalf, has ended the pod.
        message: The same, in a sentence.
    """

    def __init__(self, pod: Mapping[str, Any]) -> None:
        spec = pod["spec"]
        self.containers = [ContainerState(c["name"], c.get("image", "")) for c in spec["containers"]]
        self.inits = [ContainerState(c["name"], c.get("image", "")) for c in spec.get("initContainers") or ()]
        if self.inits:
            for container in self.containers:
                container.state = waiting("PodInitializing")
        #: Nothing of it is started again.
        self.ended = False
        self.scheduled = True
        #: Why a kubelet, or a controller on its behalf, has ended the pod.
        self.reason = self.message = ""
        self._started = now()
        self._conditions: dict[str, Raw] = {}

    def find(self, name: str) -> ContainerState:
        return next(container for container in (*self.inits, *self.containers) if container.name == name)

    @property
    def phase(self) -> str:
        if self.reason == "Evicted":
            return "Failed"
        codes = [container.exit_code for container in self.containers]
        failed_init = any(container.exit_code for container in self.inits)
        if self.ended and failed_init:
            return "Failed"
        if self.ended and None not in codes:
            return "Failed" if any(codes) else "Succeeded"
        begun = any("running" in c.state or "terminated" in c.state or c.restarts for c in self.containers)
        return "Running" if begun else "Pending"

    def render(self) -> Raw:
        if not self.scheduled:
            return {"phase": "Pending", "conditions": list(self._conditions.values()), "qosClass": "BestEffort"}
        phase = self.phase
        initialized = all(container.exit_code == 0 for container in self.inits)
        ready = phase == "Running" and all("running" in container.state for container in self.containers)
        done = "PodCompleted" if phase == "Succeeded" else "PodFailed" if phase == "Failed" else "ContainersNotReady"
        self.set("PodScheduled", True)
        self.set("Initialized", initialized, None if initialized else "ContainersNotInitialized")
        for type_ in ("ContainersReady", "Ready"):
            self.set(type_, ready, None if ready else done)
        return {
            "phase": phase,
            **({"reason": self.reason, "message": self.message} if self.reason else {}),
            "conditions": list(self._conditions.values()),
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "startTime": self._started,
            "qosClass": "BestEffort",
            **_statuses("initContainerStatuses", self.inits),
            **_statuses("containerStatuses", self.containers),
        }

    def set(self, type_: str, status: bool, reason: str | None = None, message: str | None = None) -> None:
        old = self._conditions.get(type_)
        moment = old["lastTransitionTime"] if old and old["status"] == str(status) else now()
        told = {key: value for key, value in (("reason", reason), ("message", message)) if value}
        self._conditions[type_] = {"type": type_, "status": str(status), "lastTransitionTime": moment, **told}


def _statuses(name: str, containers: Sequence[ContainerState]) -> Raw:
    return {name: [container.render() for container in containers]} if containers else {}
