"""How the life of a pod can go: each a few moves of an `Actor`, with a ``yield`` wherever time passes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

from fake_cluster.actor import Actor

Moves = Iterator[None]
_UNSCHEDULABLE = (
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: "
    "3 No preemption victims found for incoming pod."
)
_EVICTED = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. Container node was using 1Gi, "
    "request is 0, has larger consumption of memory. "
)
_RESULT = json.dumps({"result": {"loss": 0.25}})
_ERROR = json.dumps(
    {
        "error": {
            "type": "ValueError",
            "message": "no such column",
            "traceback": 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no such column',
            "rank": 0,
        }
    }
)


def _starting(pod: Actor) -> Moves:
    pod.schedule()
    yield
    pod.event("Pulled", f'Container image "{pod.container.image}" already present on machine')
    pod.wait("ContainerCreating")
    yield


def _complete(pod: Actor) -> Moves:
    yield from _starting(pod)
    pod.run("epoch 1", "epoch 2")
    yield
    pod.exit(0, message=_RESULT)
    pod.finish()


def _runs(pod: Actor) -> Moves:
    yield from _starting(pod)
    pod.run("it runs")


def _fails(pod: Actor) -> Moves:
    if pod.pod.raw["spec"].get("restartPolicy") != "Never":
        yield from _crash_loop(pod)
    yield from _starting(pod)
    pod.run("epoch 1")
    yield
    pod.exit(1, message=_ERROR)
    pod.finish()


def _unschedulable(pod: Actor) -> Moves:
    pod.stay_unscheduled(_UNSCHEDULABLE)
    yield


def _scheduled_later(pod: Actor) -> Moves:
    yield from _unschedulable(pod)
    yield from _complete(pod)


def _image_pull_error(pod: Actor) -> Moves:
    image = pod.container.image
    why = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {image}: not found'
    pod.schedule()
    yield
    while True:
        pod.event("Pulling", f'Pulling image "{image}"')
        pod.event("Failed", f'Failed to pull image "{image}": {why}')
        pod.event("Failed", "Error: ErrImagePull")
        pod.wait("ErrImagePull", why)
        yield
        pod.event("BackOff", f'Back-off pulling image "{image}"')
        pod.event("Failed", "Error: ImagePullBackOff")
        pod.wait("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {why}')
        yield


def _invalid_image(pod: Actor) -> Moves:
    image = pod.container.image
    why = f'couldn\'t parse image name "{image}": invalid reference format'
    pod.schedule()
    yield
    pod.event("InspectFailed", f'Failed to apply default image tag "{image}": {why}')
    pod.event("Failed", "Error: InvalidImageName")
    pod.wait("InvalidImageName", f'Failed to apply default image tag "{image}": {why}')


def _missing_secret(pod: Actor) -> Moves:
    pod.schedule()
    yield
    pod.event("Failed", 'Error: secret "token" not found')
    pod.wait("CreateContainerConfigError", 'secret "token" not found')


def _crash_loop(pod: Actor) -> Moves:
    yield from _crashing(pod, 1, None, _ERROR)


def _recovers(pod: Actor) -> Moves:
    yield from itertools.islice(_crash_loop(pod), 9)
    pod.exit(0, message=_RESULT)
    pod.finish()


def _out_of_memory(pod: Actor) -> Moves:
    yield from _crashing(pod, 137, "OOMKilled", None)


def _crashing(pod: Actor, code: int, reason: str | None, message: str | None) -> Moves:
    yield from _starting(pod)
    pod.run("epoch 1")
    yield
    for crashes in itertools.count(1):
        pod.exit(code, reason, message)
        yield
        if crashes > 1:
            pod.back_off(f"{min(10 * 2 ** (crashes - 2), 300)}s")
            yield
        pod.restart("epoch 1")
        yield


def _preempted(pod: Actor) -> Moves:
    yield from _runs(pod)
    yield
    why = "default-scheduler: preempting to accommodate a higher priority pod"
    pod.event_v1("Preempted", "Preempted by pod 0b8e7c52-6bd5-4f4b-9d56-50f1f2f0a2f5 on node node-a", "Preempting")
    pod.disrupt("PreemptionByScheduler", why)
    yield
    pod.exit(143)
    pod.finish()
    yield
    pod.vanish()


def _evicted(pod: Actor) -> Moves:
    yield from _runs(pod)
    yield
    pod.event("Evicted", _EVICTED)
    pod.disrupt("TerminationByKubelet", _EVICTED)
    pod.state.reason, pod.state.message = "Evicted", _EVICTED
    pod.exit(137)
    pod.finish()


def _node_lost(pod: Actor) -> Moves:
    yield from _runs(pod)
    yield
    pod.event("NodeNotReady", "Node is not ready", "node-controller")
    pod.state.reason = "NodeLost"
    pod.state.message = f"Node node-a which was running pod {pod.pod.key[1]} is unresponsive"
    pod.write()
    yield
    pod.event("TaintManagerEviction", f"Marking for deletion Pod {'/'.join(pod.pod.key)}", "taint-eviction-controller")
    pod.disrupt("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    yield
    pod.vanish()


POD_LIVES: dict[str, Callable[[Actor], Moves]] = {
    "complete": _complete,
    "runs": _runs,
    "fails": _fails,
    "pending-unschedulable": _unschedulable,
    "scheduled-later": _scheduled_later,
    "image-pull-error": _image_pull_error,
    "invalid-image-name": _invalid_image,
    "create-container-config-error": _missing_secret,
    "crash-loop": _crash_loop,
    "recovers": _recovers,
    "oom": _out_of_memory,
    "preempted": _preempted,
    "evicted": _evicted,
    "node-lost": _node_lost,
}
