"""What the look component does: say what stands behind a URI now, so that KFP's cache can tell old from new."""

from __future__ import annotations

import os

from kfp_components._client import IN_CONTAINER
from kfp_components._executor import Task
from trainer_core.errors import InvalidRequestError

__all__ = ["look"]


def look(
    task: Task,
    *,
    storage_uri: str,
    role: str = "dataset",
    ignore_patterns: list[str] | None = None,
    env: dict[str, str] | None = None,
) -> None:
    """Look at a source without fetching it; the component's docstring describes the inputs."""
    from trainer_core.fetching import schemes, settings, source  # Only those who look need what fetches.

    if role not in settings.ROLES:
        raise InvalidRequestError(f"role must be one of {', '.join(settings.ROLES)}, got {role!r}")
    # In its container the variables are those of the task; on a user's machine REGION may be anything.
    around = dict(os.environ) if IN_CONTAINER in os.environ else {}
    asked = {"STORAGE_URI": storage_uri, "IGNORE_PATTERNS": ",".join(ignore_patterns or ())}
    try:
        seen = schemes.source(settings.Settings.from_env(role, {**around, **(env or {}), **asked})).look()
    except source.FetchError as error:
        raise InvalidRequestError(str(error)) from error
    print(f"{storage_uri}: {len(seen.files)} files, {seen.size} bytes, version {seen.digest}", flush=True)
    task.write("version", seen.digest)
