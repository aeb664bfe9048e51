"""What Kubernetes' words mean: reasons and messages of pods and events → what hinders a job, and for how long. Pure.

The words are those of kubelet, container runtimes, registries, scheduler and admission; a message is part of no API,
so one that is not known here is given time before it counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "GIVE_UP",
    "NOT_STARTED",
    "SOON",
    "WAIT",
    "Hindrance",
    "container",
    "creation",
    "displaced",
    "image",
    "mount",
    "scheduling",
]

#: Seconds that something may stay wrong: it will not change; it may change in a moment; it may pass by itself.
GIVE_UP, SOON, WAIT = 0.0, 30.0, 300.0

_LIMIT = 400
_IMAGE_BACKOFF = "ImagePullBackOff"
#: Whatever the text says, these do not change.
_IMAGE_NEVER = frozenset({"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"})
_IMAGE = _IMAGE_NEVER | {"ErrImagePull", _IMAGE_BACKOFF, "RegistryUnavailable", "ImageInspectError"}
#: How a container ends whose command could not be started.
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
_NOT_STARTED = NOT_STARTED | {"CreateContainerError", "RunContainerError"}
_CONFIG = "CreateContainerConfigError"

#: Servers and networks that may answer better in a while.
_PASSING = re.compile(
    r"time(d )?[ -]?out|deadline exceeded|toomanyrequests|Too Many Requests|rate limit|connection (reset|refused)"
    r"|no such host|server misbehaving|unexpected EOF|\bEOF$|temporar|\b50[0234] [A-Z]|context canceled|no space left"
    r"|failed calling webhook|object has been modified|etcdserver|try again|no route to host|unavailable"
    r"|unable to handle|is being deleted|already exists|owned by another object|Only one reference can have Controller",
    re.IGNORECASE,
)
#: A registry that is not there at all: a mistyped host more often than one that is just restarted.
_NO_REGISTRY = re.compile(r"connection refused|no such host", re.IGNORECASE)
_NO_IMAGE = re.compile(
    r"not found|manifest unknown|name unknown|does not exist|denied|unauthorized|\b40[13]\b|authentication required"
    r"|no basic auth|insufficient_scope|invalid reference|couldn't parse|no match(ing manifest|.*for platform)|x509",
    re.IGNORECASE,
)
_NO_COMMAND = re.compile(r"executable file not found|no such file or directory|permission denied|not a directory", re.I)
_PULL_PREFIX = re.compile(r'^(Back-off pulling|Failed to pull) image "[^"]*"(: ErrImagePull)?:? ?')
_QUOTA = re.compile(r"exceeded quota", re.IGNORECASE)
_MISSING = re.compile(r"not found", re.IGNORECASE)
_REFUSED = re.compile(r"denied the request|is invalid|invalid value|is forbidden|no matches for kind|violates", re.I)
_LACKING = re.compile(r"Insufficient ([\w/-]+(?:\.[\w/-]+)*)")
_CLAIM = re.compile(r"PersistentVolumeClaim|volume", re.IGNORECASE)
_OWN_LIMIT = re.compile(r"local (ephemeral )?storage (limit|usage)|EmptyDir volume .* exceeds", re.IGNORECASE)

_PREEMPTED = {
    "PreemptionByScheduler": "it was preempted: a job of higher priority needs its place",
    "PreemptionByKubeScheduler": "it was preempted: a job of higher priority needs its place",
    "Preempting": "it was preempted by its machine for a critical pod",
    "EvictionByEvictionAPI": "it was evicted through the API (a machine is drained, or an autoscaler removes it)",
    "Evicted": "it was evicted by its machine",
    "TerminationByKubelet": "its machine ended it",
}
_NODE_LOST = {
    "DeletionByTaintManager": "its machine became unusable (not ready, unreachable, or tainted)",
    "DeletionByPodGC": "its machine is gone",
    "NodeLost": "its machine does not answer",
    "NodeShutdown": "its machine was shut down",
    "Shutdown": "its machine was shut down",
    "Terminated": "its machine was shut down",
    "ContainerStatusUnknown": "its machine lost sight of it",
    "NodeNotReady": "its machine is not ready",
}


@dataclass(frozen=True)
class Hindrance:
    """What keeps a job from running.

    Attributes:
        kind: The field of `diagnosis.Facts` that takes it.
        text: What it is, in one line.
        grace: Seconds that it may last before it counts; None where it lasts as long as it lasts.
        passing: It may pass by itself although things of its kind do not.
    """

    kind: Literal["image_error", "infrastructure_error", "rejected", "unschedulable"]
    text: str
    grace: float | None
    passing: bool = False


def container(reason: str, message: str, image_name: str) -> Hindrance | None:
    """Say what a container waits for; None where that is nothing to speak of."""
    if reason in _IMAGE:
        return image(reason, message, image_name)
    if reason == _CONFIG:
        return Hindrance("rejected", _cut(f"its container cannot be set up: {message}"), SOON)
    if reason not in _NOT_STARTED:
        return None
    text = _cut(f"its command cannot be started in image {image_name}: {message}")
    if _NO_COMMAND.search(message) or reason in NOT_STARTED:
        return Hindrance("image_error", text, GIVE_UP)
    return Hindrance("infrastructure_error", _cut(f"its container cannot be started: {reason}: {message}"), WAIT)


def image(reason: str, message: str, name: str) -> Hindrance:
    """Say why an image cannot be pulled. What a registry refuses counts at once, a registry that is away does not."""
    said = _PULL_PREFIX.sub("", message)
    text = _cut(f"its image {name} cannot be pulled: {said or reason}")
    if reason in _IMAGE_NEVER:
        return Hindrance("image_error", text, GIVE_UP)
    if _PASSING.search(said):
        return Hindrance("image_error", text, SOON if _NO_REGISTRY.search(said) else WAIT, passing=True)
    known = _NO_IMAGE.search(said) or reason == _IMAGE_BACKOFF
    return Hindrance("image_error", text, GIVE_UP if known else SOON)


def creation(message: str) -> Hindrance:
    """Say why a part of a job cannot be created: refused by admission, over quota, or not for now."""
    if _QUOTA.search(message):
        return Hindrance("unschedulable", _cut(f"the quota of its namespace is used up: {message}"), WAIT)
    if _PASSING.search(message):
        return Hindrance("infrastructure_error", _cut(f"a part of it cannot be created: {message}"), WAIT)
    text = _cut(f"a part of it cannot be created: {message}")
    if _MISSING.search(message):
        return Hindrance("rejected", text, SOON)
    return Hindrance("rejected", text, GIVE_UP if _REFUSED.search(message) else SOON)


def scheduling(reason: str, message: str) -> Hindrance:
    """Say why no machine takes a pod."""
    if reason == "SchedulingGated":
        return Hindrance("unschedulable", f"it waits for its scheduling gates to be lifted: {message}", None)
    lacking = list(dict.fromkeys(_LACKING.findall(message)))
    what = f"no machine has enough {' and '.join(lacking)}" if lacking else "no machine takes it"
    if not lacking and _CLAIM.search(message):
        what = "its volume cannot be had"
    return Hindrance("unschedulable", _cut(f"{what}: {message}"), WAIT)


def mount(message: str) -> Hindrance:
    """Say why a volume cannot be mounted."""
    text = _cut(f"a volume of it cannot be mounted: {message}")
    if _MISSING.search(message):
        return Hindrance("rejected", text, 2 * SOON)
    return Hindrance("infrastructure_error", text, WAIT)


def displaced(reason: str, message: str) -> dict[str, str]:
    """Say why a pod had to leave its machine, as fields of `diagnosis.StepFacts`; empty where it had not."""
    if _OWN_LIMIT.search(message):
        return {"message": _cut(f"it used more disk than it may: {message}; ask for more storage")}
    for field, known in (("preempted", _PREEMPTED), ("node_lost", _NODE_LOST)):
        if reason in known:
            return {field: _cut(f"{known[reason]}: {message}" if message else known[reason])}
    return {}


def _cut(text: str) -> str:
    return text if len(text) <= _LIMIT else f"{text[: _LIMIT - 1]}…"
