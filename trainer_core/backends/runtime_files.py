"""Reads ClusterTrainingRuntimes from YAML files, for backends that have no Kubernetes API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["list_runtime_files", "parse_runtimes", "warn_skipped"]

_KIND = "ClusterTrainingRuntime"
_log = logging.getLogger(__name__)
_Runtime = TypeVar("_Runtime")


def list_runtime_files(path: Path) -> list[Path]:
    """Return the YAML files of a folder in alphabetical order, or the path itself if it is not a folder."""
    return sorted(path.glob("*.y*ml")) if path.is_dir() else [path]


def parse_runtimes(source: str, text: str, parse: Callable[[Mapping[str, Any]], _Runtime]) -> Iterator[_Runtime]:
    """Parse the runtimes of a YAML file. Documents of another kind are ignored.

    A runtime that cannot be parsed is skipped with a warning, so that one mistake does not hide the other runtimes.

    Args:
        source: Where the text comes from, for warnings.
        text: YAML, with any number of documents.
        parse: Validates one runtime and returns what the backend needs of it.
    """
    import yaml  # 20 ms, needed only where runtimes are read

    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        warn_skipped(source, error)
        return
    for document in documents:
        if isinstance(document, Mapping) and document.get("kind", _KIND) != _KIND:
            continue
        if document is None:
            continue
        try:
            yield parse(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            warn_skipped(source, error)


def warn_skipped(source: str, error: Exception) -> None:
    """Log that a file or a runtime in it is ignored."""
    _log.warning("runtime %s is skipped: %s: %s", source, type(error).__name__, " ".join(str(error).split()))
