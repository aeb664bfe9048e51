"""``update_trainjob_status`` of the Kubeflow SDK: progress for followers and for the status of Kubeflow Trainer.

Trainer 2.2 and later can offer each job a status endpoint; nothing is sent if there is none.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import env
from .progress import get_objective, progress

#: Variables of Trainer's controller: a URL and two paths. While `status_server` runs, the libraries find its own values
#: there, and those of the controller have names with a prefix.
NAMES = URL, TOKEN, CA_CERT = (
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
)
KEPT = "TRAINJOB_"
#: Seconds between two reports to the server, as in the Kubeflow SDK.
INTERVAL = 5.0
#: Timeout of one report, in seconds: training waits at most this long.
_TIMEOUT = 5.0
_MAX_METRICS = 256
_MAX_METRIC_LENGTH = 64

_last_sent = -math.inf


def update_trainjob_status(
    progress_percent: int | None = None,
    estimated_remaining_seconds: int | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> bool:
    """Report the progress of the training. Cheap enough for every step; never raises.

    Followers of the job see it on every backend, as with `progress`. Trainer's ``status.trainerStatus`` is updated at
    most every five seconds, and always at 100 percent. Only rank 0 reports.

    Args:
        progress_percent: Completed share of the training, 0 to 100.
        estimated_remaining_seconds: Estimated remaining time, in seconds.
        metrics: Numbers or strings by name.

    Returns:
        Whether Trainer's status was updated by this call.

    Example:
        ```python
        from trainer_core import update_trainjob_status

        update_trainjob_status(progress_percent=40, metrics={"loss": 0.3})
        ```
    """
    progress(step=progress_percent, total=None if progress_percent is None else 100, metrics=metrics)
    if env.rank() != 0 or not _is_due(progress_percent):
        return False
    with contextlib.suppress(Exception):  # An unreachable or misbehaving server must not end the training.
        return send(json.dumps(build_status(progress_percent, estimated_remaining_seconds, metrics)).encode())
    return False


def get(name: str) -> str:
    """Return a variable of Trainer's controller; empty if there is none."""
    return os.environ.get(KEPT + name, os.environ.get(name, ""))


def _is_due(percent: int | None) -> bool:
    global _last_sent
    if not get(URL) or not get(TOKEN):
        return False
    now = time.monotonic()
    objective = get_objective()
    is_rung = objective is not None and objective.claim_status()
    # The final report is always sent, and one at a rung of a search.
    if now - _last_sent < INTERVAL and percent != 100 and not is_rung:
        return False
    _last_sent = now
    return True


def build_status(percent: int | None, remaining: int | None, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    status: dict[str, Any] = {"lastUpdatedTime": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    if percent is not None:
        status["progressPercentage"] = max(0, min(100, int(percent)))
    if remaining is not None:
        status["estimatedRemainingSeconds"] = max(0, int(remaining))
    objective = get_objective()
    known = objective.list_status_metrics() if objective else {}
    if metrics or known:
        pairs = [*known.items(), *(metrics or {}).items()][:_MAX_METRICS]
        status["metrics"] = [
            {"name": str(k)[:_MAX_METRIC_LENGTH], "value": str(v)[:_MAX_METRIC_LENGTH]} for k, v in pairs
        ]
    return {"trainerStatus": status}


def send(body: bytes, read: Callable[[str], str] = get) -> bool:
    """Send a report to the server that the variables name; return whether it was accepted."""
    # Imported only if there is a server. Not urllib: it would send the token to the target of a redirect.
    import http.client
    import ssl

    url = urlsplit(read(URL))
    # The token is renewed in place while the job runs.
    token = Path(read(TOKEN)).read_text(encoding="utf-8").strip()
    connection = http.client.HTTPConnection(url.netloc, timeout=_TIMEOUT)
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=read(CA_CERT) or None)
        connection = http.client.HTTPSConnection(url.netloc, timeout=_TIMEOUT, context=context)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with contextlib.closing(connection):
        connection.request("POST", url.path, body, headers)
        return 200 <= connection.getresponse().status < 300
