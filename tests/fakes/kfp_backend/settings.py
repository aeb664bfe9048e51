"""What an administrator sets for an installation of KFP, and what a test decides for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT_ROOT = "minio://mlpipeline/v2/artifacts"


@dataclass(frozen=True)
class Installation:
    """Settings of an installation, with the defaults of KFP's manifests."""

    #: ``defaultPipelineRoot`` of ConfigMap kfp-launcher.
    root: str = DEFAULT_ROOT
    #: PUBLISH_LOGS: whether each task has the output artifact ``executor-logs``.
    publish_logs: bool = True
    #: False for CACHE_DISABLED.
    cache: bool = True
    namespace: str = "kubeflow"
    #: Such as ``{"HTTP_PROXY": …}``, in both spellings, as the API server adds them to each container.
    proxies: Mapping[str, str] = field(default_factory=dict)
    #: Variables of a task plug-in such as MLflow's, as Kubernetes writes them.
    plugin_environment: Sequence[Mapping[str, Any]] = ()
    image_environment: Mapping[str, str] = field(default_factory=dict)
    #: ``templateDefaults.retryStrategy.retryPolicy`` of Argo's settings, with a limit of 2: "OnError" in KFP 2.17's
    #: manifests. None for an installation without this setting.
    retry_policy: str | None = "OnError"
    #: TTL_SECONDS_AFTER_WORKFLOW_FINISH of the persistence agent, in seconds.
    workflow_ttl: float = 86_400.0


@dataclass(frozen=True)
class Pod:
    """What happens to one try of a task, where it is not simply run to its end."""

    #: How long it runs, on the simulated clock.
    seconds: float = 0.0
    #: The pod is evicted before its program starts: Argo's phase is Error, not Failed.
    evicted: bool = False


@dataclass
class Clock:
    """Simulated time: nothing waits, tests move it."""

    now: float = 1_790_000_000.0
