"""What the components initialize_dataset and initialize_model do: fetch once, as a TrainJob of its own."""

from __future__ import annotations

from typing import Any

from kfp_components import _follow, _handover, _ownership
from kfp_components._client import client_for
from kfp_components._executor import Task
from kfp_components._request import owned
from trainer_core import waiting
from trainer_core.errors import InvalidRequestError

__all__ = ["initialize"]


def initialize(
    task: Task,
    *,
    storage_uri: str,
    ignore_patterns: list[str] | None = None,
    version: str | None = None,
    env: dict[str, str] | None = None,
    secrets: dict[str, Any] | None = None,
    workspace: dict[str, Any] | None = None,
    backend: str = "local",
    backend_config: dict[str, Any] | None = None,
    job_name: str | None = None,
    timeout: int = 0,
    on_kill: str = "cancel",
) -> None:
    """Fetch what the task's only output artifact is named after; the components' docstrings describe the inputs."""
    _follow.check_on_kill(on_kill)
    ((role, artifact),) = task.artifacts.items()
    source = {"storage_uri": storage_uri, "ignore_patterns": ignore_patterns, "env": env, "secrets": secrets}
    given = {key: value for key, value in source.items() if value}
    client = client_for(backend, backend_config)
    request = {"initializer": {role: given}, **({"workspace": workspace} if workspace else {})}
    with _follow.submitted(client, owned(request, job_name, artifact.uri, slug=role), on_kill) as ref:
        if not job_name:
            _ownership.tie_to_run(client, ref, backend_config)
        outcome, _ = _follow.follow(client, ref, timeout)
    task.write("job", ref.to_dict())
    task.write("status", outcome.status)
    task.write("result", dict(outcome.artifacts))
    waiting.outcome_or_raise(outcome)
    if role not in outcome.artifacts:
        raise InvalidRequestError(f"TrainJob {ref.name!r} does not say where the {role} lies; the backend must name it")
    facts = {"job": ref.name, "backend": ref.backend, "storage_uri": storage_uri, "uri": outcome.artifacts[role]}
    artifact.metadata.update({**facts, **({"version": version} if version else {})})
    task.write("uri", outcome.artifacts[role])
    _handover.place(artifact, outcome.artifacts[role])
