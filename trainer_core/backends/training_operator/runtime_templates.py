"""Runtimes of the Training Operator backend: files of ClusterTrainingRuntimes, as the operator has no runtimes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from trainer_core.backends.runtime_files import read_runtime_file
from trainer_core.base.errors import BackendUnavailableError, RuntimeNotFoundError
from trainer_core.base.text import shorten
from trainer_core.k8s import resources, runtimes

_log = logging.getLogger(__name__)
_PACKAGED_FOLDER = Path(__file__).parent / "runtimes"
_KINDS = frozenset({resources.CLUSTER_TRAINING_RUNTIMES.kind, resources.TRAINING_RUNTIMES.kind})


def get_raw_runtime(folder: Path | None, name: str, kind: str | None = None) -> dict[str, Any]:
    raws = list_raw_runtimes(folder)
    for raw in raws:
        if runtimes.get_name(raw) == name and kind in (None, raw["kind"]):
            return raw
    known = ", ".join(runtimes.get_name(raw) for raw in raws)
    remedy = f"add {folder}/{name}.yaml" if folder else "set `runtimes` to a folder of YAML files"
    raise RuntimeNotFoundError(
        f"{kind or 'runtime'} {name!r} not found on the training-operator backend; available: {known}; {remedy}"
    )


def list_raw_runtimes(folder: Path | None) -> list[dict[str, Any]]:
    """Return all runtimes, sorted by name. Files and documents that are not runtimes are skipped with a warning."""
    if folder is not None and not folder.is_dir():
        raise BackendUnavailableError(f"runtimes: {folder} is not a folder; create it, or remove the setting")
    raws: dict[str, dict[str, Any]] = {}
    for parent in filter(None, (folder, _PACKAGED_FOLDER)):
        for path in sorted(parent.glob("*.yaml")):
            for raw in _read_runtimes(path):
                raws.setdefault(runtimes.get_name(raw), raw)
    return [raw for _, raw in sorted(raws.items())]


def _read_runtimes(path: Path) -> list[dict[str, Any]]:
    from trainer_core.base.yaml_documents import parse_yaml  # 20 ms, needed only where runtimes are read

    try:
        documents = parse_yaml(read_runtime_file(path), kubernetes=True)
    except (OSError, ValueError) as error:
        _log.warning("runtimes of %s are skipped: %s", path, shorten(str(error)))
        return []
    return [raw for raw in documents if _is_runtime(path, raw)]


def _is_runtime(path: Path, raw: Any) -> bool:
    try:
        if raw["kind"] not in _KINDS:
            return False
        if runtimes.find_trainer_container(raw) is None:
            raise ValueError("it has no container 'node' in its trainer job")
        runtimes.get_name(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("a runtime of %s is skipped: %s: %s", path, type(error).__name__, error)
        return False
    return True
