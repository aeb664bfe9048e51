"""What the look component does: return the version of a source, which is part of the cache key of its fetch."""

from __future__ import annotations

import os
import sys

from kfp_components.step.client import IN_CONTAINER, LIMIT_SECONDS
from kfp_components.step.executor_input import Task
from kfp_components.step.initializer_source import KFP_STORE_KEYS, convert_to_s3
from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.retries import read_limit, repeat_while_failing
from trainer_core.base.secrets import redact


def look(
    task: Task,
    *,
    storage_uri: str,
    run_id: str,
    role: str = "dataset",
    ignore_patterns: list[str] | None = None,
    env: dict[str, str] | None = None,
) -> None:
    """Read the version of a source without fetching it; the component's docstring describes the inputs."""
    from trainer_core.fetch import schemes, settings, source  # Only this component needs the fetching code.

    # A pipeline parameter that is left empty is not a setting.
    given = {name: value for name, value in (env or {}).items() if value}

    if role not in settings.ROLES:
        raise InvalidRequestError(f"role must be one of {', '.join(settings.ROLES)}, got {redact(role)}")
    # In its container the variables are the task's; on a user's machine REGION may belong to another program.
    around = dict(os.environ) if IN_CONTAINER in os.environ else {}
    if storage_uri.startswith("minio://"):
        kfp_keys = {name: around[held] for name, held in KFP_STORE_KEYS.items() if around.get(held)}
        around = {**kfp_keys, **around}
    converted = convert_to_s3(role, {"storage_uri": storage_uri, "env": given})
    asked = {"STORAGE_URI": converted["storage_uri"], "IGNORE_PATTERNS": ",".join(ignore_patterns or ())}
    try:
        fetch_settings = settings.FetchSettings.from_env(role, {**around, **converted["env"], **asked})
        files = schemes.create_source(fetch_settings)
        seen = repeat_while_failing(files.list_files, _is_busy, read_limit(LIMIT_SECONDS), _report)
    except source.FetchError as error:
        raise InvalidRequestError(str(error)) from error
    print(f"{storage_uri}: {len(seen.files)} files, {seen.size} bytes, version {seen.digest}")
    task.write("version", seen.digest)


def _is_busy(error: Exception) -> bool:
    """Return whether a store may answer later. The class of the error is loaded by those who fetch alone."""
    return bool(getattr(error, "retryable", False))


def _report(error: Exception, remaining: float) -> None:
    print(f"repeated for {remaining:.0f} s: {error}", file=sys.stderr)
