"""Runtimes of this backend: files in the shape of a ClusterTrainingRuntime, since the Training Operator has none.

The packaged ones are ``torch-distributed`` and ``python``; those of the folder that the configuration names come first.
What runs on Trainer from a runtime runs here from the same file.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from trainer_core.cluster import kinds, runtimes
from trainer_core.errors import BackendUnavailableError, RuntimeNotFoundError

__all__ = ["get", "list_all"]

_log = logging.getLogger(__name__)
_PACKAGED = Path(__file__).parent / "runtimes"
_KINDS = frozenset({kinds.CLUSTER_TRAINING_RUNTIMES.kind, kinds.TRAINING_RUNTIMES.kind})


def get(folder: Path | None, name: str, kind: str | None = None) -> dict[str, Any]:
    """Return one runtime.

    Args:
        folder: Where runtimes lie besides the packaged ones.
        name: Its name.
        kind: Its kind; None for either.

    Raises:
        RuntimeNotFoundError: There is none of that name; the message names those there are.
        BackendUnavailableError: The folder is not there.
    """
    known = list_all(folder)
    for raw in known:
        if runtimes.name(raw) == name and kind in (None, raw["kind"]):
            return raw
    names = ", ".join(runtimes.name(raw) for raw in known)
    more = f"add {folder}/{name}.yaml" if folder else "name a folder of YAML files in the setting runtimes"
    raise RuntimeNotFoundError(
        f"no {kind or 'runtime'} {name!r} on the training-operator backend; there are {names}; {more}"
    )


def list_all(folder: Path | None) -> list[dict[str, Any]]:
    """Return every runtime by name; what is none is left out with a warning.

    Raises:
        BackendUnavailableError: The folder is not there.
    """
    if folder is not None and not folder.is_dir():
        raise BackendUnavailableError(f"runtimes: {folder} is no folder; make it, or leave the setting out")
    found: dict[str, dict[str, Any]] = {}
    for place in filter(None, (folder, _PACKAGED)):
        for path in sorted(place.glob("*.yaml")):
            for raw in _read(path):
                found.setdefault(runtimes.name(raw), raw)
    return [raw for _, raw in sorted(found.items())]


def _read(path: Path) -> list[dict[str, Any]]:
    import yaml  # 20 ms that only those who look at runtimes shall pay

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        documents = list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=loader))
    except (OSError, ValueError, yaml.YAMLError) as error:
        _log.warning("runtimes of %s are left out: %s", path, str(error).replace("\n", " "))
        return []
    return [raw for raw in documents if _is_runtime(path, raw)]


def _is_runtime(path: Path, raw: Any) -> bool:
    try:
        trains = raw["kind"] in _KINDS and runtimes.trainer_container(raw) is not None
        if raw["kind"] in _KINDS and not trains:
            raise ValueError("it has no container 'node' in a job that trains")
        runtimes.name(raw)
        return trains
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("a runtime of %s is left out: %s: %s", path, type(error).__name__, error)
        return False
