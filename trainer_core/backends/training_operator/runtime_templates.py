"""Runtimes of the Training Operator backend: files of ClusterTrainingRuntimes, as the operator has no runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_core.backends.runtime_files import list_runtime_files, read_runtimes
from trainer_core.base.errors import BackendUnavailableError, RuntimeNotFoundError
from trainer_core.k8s import resources, runtimes

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
        for path in list_runtime_files(parent):
            for raw in read_runtimes(path, _validate_runtime, _KINDS):
                raws.setdefault(runtimes.get_name(raw), raw)
    return [raw for _, raw in sorted(raws.items())]


def _validate_runtime(raw: Mapping[str, Any]) -> dict[str, Any]:
    name = runtimes.get_name(raw)
    if runtimes.find_trainer_container(raw) is None:
        raise ValueError(f"{name} has no container 'node' in its trainer job")
    return {"kind": resources.CLUSTER_TRAINING_RUNTIMES.kind, **raw}
