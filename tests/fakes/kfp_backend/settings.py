"""What an administrator sets for an installation of KFP, and what a test decides for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DEFAULT_ROOT", "Clock", "Installation", "Pod"]

DEFAULT_ROOT = "minio://mlpipeline/v2/artifacts"


@dataclass(frozen=True)
class Installation:
    """Settings of an installation, with the defaults of KFP's manifests.

    Args:
        root: ``defaultPipelineRoot`` of ConfigMap kfp-launcher.
        publish_logs: PUBLISH_LOGS: whether each task has the output artifact ``executor-logs``.
        cache: False for CACHE_DISABLED.
        namespace: Of the runs.
        proxies: Such as ``{"HTTP_PROXY": …}``, in both spellings, as the API server adds them to each container.
        plugin_environment: Variables of a task plug-in such as MLflow's, as Kubernetes writes them.
        image_environment: ENV of the components' image.
        retry_policy: ``templateDefaults.retryStrategy.retryPolicy`` of Argo's settings, with a limit of 2: "OnError" in
            KFP 2.17's manifests. None for an installation without this setting.
        workflow_ttl: TTL_SECONDS_AFTER_WORKFLOW_FINISH of the persistence agent, in seconds.
    """

    root: str = DEFAULT_ROOT
    publish_logs: bool = True
    cache: bool = True
    namespace: str = "kubeflow"
    proxies: Mapping[str, str] = field(default_factory=dict)
    plugin_environment: Sequence[Mapping[str, Any]] = ()
    image_environment: Mapping[str, str] = field(default_factory=dict)
    retry_policy: str | None = "OnError"
    workflow_ttl: float = 86_400.0


@dataclass(frozen=True)
class Pod:
    """What happens to one try of a task, where it is not simply run to its end.

    Args:
        seconds: How long it runs, on the simulated clock.
        evicted: The pod is evicted before its program starts: Argo's phase is Error, not Failed.
    """

    seconds: float = 0.0
    evicted: bool = False


@dataclass
class Clock:
    """Simulated time: nothing waits, tests move it.

    Attributes:
        now: Seconds since the epoch.
    """

    now: float = 1_790_000_000.0
