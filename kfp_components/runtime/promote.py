"""What the promote component does: copy a model to a registry folder, if it beats the one promoted last.

Of the registry folder::

    current.json            the model promoted last: version, metric, file or folder; replaced atomically
    versions/<version>/     each model that was ever promoted, whole
    lock                    held while one is compared and promoted
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kfp_components.runtime import outputs
from kfp_components.runtime.executor_input import Artifact, Task, get_local_path
from trainer_core.errors import InvalidRequestError

__all__ = ["promote"]

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def promote(
    task: Task,
    *,
    model: Artifact,
    metric: float,
    registry: str,
    run_id: str,
    higher_is_better: bool = True,
) -> None:
    """Promote a model; the component's docstring describes the inputs."""
    folder = get_local_path(registry) if registry.startswith(("/", "file://")) else None
    if folder is None:
        raise InvalidRequestError(f"registry must be an absolute path or file:// URI, got {registry!r}")
    if not math.isfinite(metric):
        raise InvalidRequestError(f"metric is {metric}, which nothing could ever beat; give a finite number")
    source = model.require_path()
    if not source.exists() and (recorded := model.metadata.get("uri")):
        raise InvalidRequestError(
            f"model: its files are at {recorded} and not in the artifact; on a cluster give train_task and wait_task "
            "an output_path, and let the training function write the model to output_path()"
        )
    if not source.exists():
        raise InvalidRequestError(
            f"there is no model at {source}; let the training function return {{'artifacts': {{'model': uri}}}}"
        )
    version = _get_version(model)
    with _lock_registry(folder):
        last = _read_current(folder)
        # A retry, not another job that took the name.
        is_last = (last.get("version"), last.get("metric")) == (version, metric)
        promoted = is_last or _is_better(metric, last.get("metric"), higher_is_better)
        if promoted:
            _replace_current(folder, version, source, metric)
        current = _read_current(folder)
    task.write("promoted", promoted)
    task.write("uri", (folder / current["path"]).as_uri())
    verdict = "promoted" if promoted else f"not promoted, for {last.get('version')} has {last.get('metric')}"
    print(f"model {version} with {metric} is {verdict}", flush=True)


def _get_version(model: Artifact) -> str:
    """The model's job, so that a retry promotes the same; a digest of the URI for a model of another origin."""
    job = str(model.metadata.get("job") or "")
    return job if _VERSION.fullmatch(job) else hashlib.sha256(model.uri.encode()).hexdigest()[:16]


def _is_better(metric: float, last: Any, higher_is_better: bool) -> bool:
    if last is None:
        return True
    return metric > float(last) if higher_is_better else metric < float(last)


def _replace_current(folder: Path, version: str, source: Path, metric: float) -> None:
    target = Path("versions", version, source.name)
    outputs.replace_path(source, folder / target)
    temporary = folder / f".current.{uuid.uuid4().hex}"
    temporary.write_text(json.dumps({"version": version, "metric": metric, "path": str(target)}), encoding="utf-8")
    temporary.replace(folder / "current.json")


def _read_current(folder: Path) -> dict[str, Any]:
    try:
        data = json.loads((folder / "current.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        data = None
    if not isinstance(data, dict) or not data.keys() >= {"version", "metric", "path"}:
        raise InvalidRequestError(
            f"{folder / 'current.json'} is not that of a registry; give promote a separate folder"
        )
    return data


@contextmanager
def _lock_registry(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
