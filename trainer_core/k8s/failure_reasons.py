"""Interpretation of reasons and messages in pod status and events: which ones block a job, and for how long.

The strings come from the kubelet, container runtimes, registries, the scheduler and admission. Messages are not part of
any API: an unknown message is fatal only after a grace period. Pure functions without I/O.

From pod to diagnosis: `failure_facts` collects `Facts`, with the reasons of this module for what blocks a start;
`trainer_core.lifecycle.diagnosis` decides what they mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from trainer_core.base.resources import parse_quantity

#: Grace of a problem that does not resolve without a change by a user, in seconds.
FATAL = 0.0
#: Grace of a problem that may be a matter of order, such as a Secret that is created after the job, in seconds.
SHORT_GRACE = 30.0
#: Grace of a problem that may resolve without a change, such as a registry outage, in seconds.
LONG_GRACE = 300.0

_MAX_LENGTH = 400
_IMAGE_BACKOFF = "ImagePullBackOff"
#: Reasons that are fatal regardless of the message.
_FATAL_IMAGE_REASONS = frozenset({"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"})
_IMAGE_REASONS = _FATAL_IMAGE_REASONS | {"ErrImagePull", _IMAGE_BACKOFF, "RegistryUnavailable", "ImageInspectError"}
#: Termination reasons of a container that could not be started.
START_ERRORS = frozenset({"StartError", "ContainerCannotRun"})
_CREATE_ERRORS = START_ERRORS | {"CreateContainerError", "RunContainerError"}
_CONFIG_ERROR = "CreateContainerConfigError"

#: Errors of servers and networks that may disappear after a while.
_TRANSIENT = re.compile(
    r"time(d )?[ -]?out|deadline exceeded|toomanyrequests|Too Many Requests|rate limit|connection (reset|refused)"
    r"|connection closed|no such host|server misbehaving|unexpected EOF|\bEOF\b|temporar|\b50[0234] [A-Z]"
    r"|context canceled|no space left|status ?code:? 50[0234]|broken pipe|network is unreachable"
    r"|failed calling webhook|object has been modified|etcdserver|try again|no route to host|unavailable"
    r"|unable to handle|is being deleted|already exists|owned by another object|Only one reference can have Controller",
    re.IGNORECASE,
)
#: No registry answers: more often a mistyped host than a registry that restarts.
_REGISTRY_UNREACHABLE = re.compile(r"connection refused|no such host", re.IGNORECASE)
_IMAGE_REFUSED = re.compile(
    r"not found|manifest unknown|name unknown|does not exist|denied|unauthorized|\b40[13]\b|authentication required"
    r"|no basic auth|insufficient_scope|invalid reference|couldn't parse|no match(ing manifest|.*for platform)|x509",
    re.IGNORECASE,
)
_QUOTA_REQUESTED = re.compile(r"requested: (.*?), used: ")
_QUOTA_LIMITED = re.compile(r"limited: (.*)$")
_QUANTITY = re.compile(r"([^\s,=]+)=([^\s,;]+)")
_COMMAND_NOT_FOUND = re.compile(
    r"executable file .*not found|exec format error"
    r"|(\bexec:? |\bstat |\bchdir ).*(no such file or directory|permission denied|is a directory|not a directory)",
    re.IGNORECASE,
)
#: The device driver or the container runtime of the node failed, not the command.
_NODE_FAULT = re.compile(r"\bhook\b|nvidia-container|\bshim\b.*(timed? ?out|deadline)|driver/library", re.IGNORECASE)
#: A storage driver that has not registered yet, as on a new node.
_DRIVER_NOT_REGISTERED = re.compile(r"registered CSI drivers", re.IGNORECASE)
_PULL_PREFIX = re.compile(r'^(Back-off pulling|Failed to pull) image "[^"]*"(: ErrImagePull)?:? ?')
_QUOTA = re.compile(r"exceeded quota", re.IGNORECASE)
_NOT_FOUND = re.compile(r"not found", re.IGNORECASE)
_REFUSED = re.compile(r"denied the request|is invalid|invalid value|is forbidden|no matches for kind|violates", re.I)
_STORAGE_LIMIT = re.compile(r"local (ephemeral )?storage (limit|usage)|EmptyDir volume .* exceeds", re.IGNORECASE)

_PREEMPTED = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "PreemptionByKubeScheduler": "preempted by a pod of higher priority",
    "Preempting": "preempted by the kubelet for a critical pod",
    "EvictionByEvictionAPI": "evicted through the eviction API (node drain or autoscaler scale-down)",
    "Evicted": "evicted by the kubelet",
    "TerminationByKubelet": "terminated by the kubelet",
}
_NODE_LOST = {
    "DeletionByTaintManager": "the Kubernetes node became unusable (not ready, unreachable, or tainted)",
    "DeletionByPodGC": "the Kubernetes node no longer exists",
    "NodeLost": "the Kubernetes node does not respond",
    "NodeShutdown": "the Kubernetes node was shut down",
    "Shutdown": "the Kubernetes node was shut down",
    "Terminated": "the Kubernetes node was shut down",
    "ContainerStatusUnknown": "the Kubernetes node lost the status of the container",
    "NodeNotReady": "the Kubernetes node is not ready",
}


@dataclass(frozen=True)
class BlockingReason:
    """A reason why a job cannot run."""

    #: Field of `diagnosis.Facts` that it sets.
    fact: Literal["image_error", "infrastructure_error", "rejected", "unschedulable"]
    #: Explanation in one line.
    text: str
    #: Seconds that it may last before the job counts as failed; None for no limit.
    grace: float | None
    #: Whether it may disappear without a change, so that a retry can help, although its category is not retryable.
    transient: bool = False


def explain_container_error(reason: str, message: str, image: str) -> BlockingReason | None:
    """Explain why a container waits or did not start; None for a reason of a normal start."""
    if reason in _IMAGE_REASONS:
        return explain_image_error(reason, message, image)
    if reason == _CONFIG_ERROR:
        return BlockingReason("rejected", _truncate(f"container cannot be configured: {message}"), SHORT_GRACE)
    if reason not in _CREATE_ERRORS:
        return None
    if _COMMAND_NOT_FOUND.search(message) and not _NODE_FAULT.search(message):
        text = _truncate(f"command cannot be started in image {image}: {message}")
        return BlockingReason("image_error", text, FATAL)
    return BlockingReason(
        "infrastructure_error", _truncate(f"container cannot be started: {reason}: {message}"), LONG_GRACE
    )


def explain_image_error(reason: str, message: str, image: str) -> BlockingReason:
    """Explain why an image cannot be pulled: an answer of the registry is fatal, an unreachable registry is not."""
    details = _PULL_PREFIX.sub("", message)
    subject = f"image {image}" if image else "image"
    text = _truncate(f"{subject} cannot be pulled: {details or reason}")
    if reason in _FATAL_IMAGE_REASONS:
        return BlockingReason("image_error", text, FATAL)
    if is_transient(details):
        grace = SHORT_GRACE if _REGISTRY_UNREACHABLE.search(details) else LONG_GRACE
        return BlockingReason("image_error", text, grace, transient=True)
    refused = _IMAGE_REFUSED.search(details) or reason == _IMAGE_BACKOFF
    return BlockingReason("image_error", text, FATAL if refused else SHORT_GRACE)


def is_transient(message: str) -> bool:
    """Return whether an error of a server or network may disappear after a while."""
    return _TRANSIENT.search(message) is not None


def explain_creation_error(message: str, pods: int = 1) -> BlockingReason:
    """Explain why a controller cannot create a child object: refused by admission, over quota, or a server error."""
    if _QUOTA.search(message):
        return _explain_quota(message, pods)
    text = _truncate(f"child object cannot be created: {message}")
    if is_transient(message):
        return BlockingReason("infrastructure_error", text, LONG_GRACE)
    if _NOT_FOUND.search(message):
        return BlockingReason("rejected", text, SHORT_GRACE)
    return BlockingReason("rejected", text, FATAL if _REFUSED.search(message) else SHORT_GRACE)


def _explain_quota(message: str, pods: int) -> BlockingReason:
    """Explain an exceeded quota: pods that exceed it by themselves never fit, others wait for those that use it."""
    requested, limited = (
        dict(_QUANTITY.findall(match[1] if (match := pattern.search(message)) else ""))
        for pattern in (_QUOTA_REQUESTED, _QUOTA_LIMITED)
    )
    too_large = [name for name in requested if name in limited and _exceeds(requested[name], pods, limited[name])]
    if too_large:
        text = f"the job requests more {' and '.join(too_large)} than the quota of its namespace: {message}"
        return BlockingReason("rejected", _truncate(text), FATAL)
    return BlockingReason("unschedulable", _truncate(f"waits for quota of its namespace: {message}"), None)


def _exceeds(quantity: str, count: int, limit: str) -> bool:
    try:
        return count * parse_quantity(quantity) > parse_quantity(limit)
    except ValueError:
        return False


def explain_mount_error(message: str) -> BlockingReason:
    """Explain why a volume cannot be mounted."""
    text = _truncate(f"volume cannot be mounted: {message}")
    if _NOT_FOUND.search(message) and not _DRIVER_NOT_REGISTERED.search(message):
        return BlockingReason("rejected", text, 2 * SHORT_GRACE)
    return BlockingReason("infrastructure_error", text, LONG_GRACE)


def explain_disruption(reason: str, message: str) -> dict[str, str]:
    """Explain why a pod was removed from its Kubernetes node, as fields of `diagnosis.StepFacts`."""
    if _STORAGE_LIMIT.search(message):
        return {"message": _truncate(f"storage limit exceeded: {message}; request more ephemeral storage")}
    for field, explanations in (("preempted", _PREEMPTED), ("node_lost", _NODE_LOST)):
        if reason in explanations:
            text = explanations[reason]
            return {field: _truncate(f"{text}: {message}" if message else text)}
    return {}


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
