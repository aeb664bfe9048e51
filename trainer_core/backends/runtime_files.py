"""Reads runtimes from YAML files, for backends that have no Kubernetes API."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trainer_core.base.text import shorten

_KIND = "ClusterTrainingRuntime"
_log = logging.getLogger(__name__)
_Runtime = TypeVar("_Runtime")


def list_runtime_files(path: Path) -> list[Path]:
    """Return the YAML files of a folder in alphabetical order, or the path itself if it is not a folder."""
    return sorted(path.glob("*.y*ml")) if path.is_dir() else [path]


def read_runtimes(
    path: Path, parse: Callable[[Mapping[str, Any]], _Runtime], kinds: Collection[str] = (_KIND,)
) -> Iterator[_Runtime]:
    """Parse the runtimes of a YAML file; skip it with a warning if it cannot be read."""
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("not a regular file")
            text = file.read()
    except (OSError, ValueError) as error:
        _warn_skipped(str(path), error)
        return
    yield from parse_runtimes(str(path), text, parse, kinds)


def parse_runtimes(
    source: str, text: str, parse: Callable[[Mapping[str, Any]], _Runtime], kinds: Collection[str] = (_KIND,)
) -> Iterator[_Runtime]:
    """Parse the runtimes in a YAML text; skip other kinds, and with a warning a runtime that cannot be parsed."""
    from trainer_core.base.yaml_documents import parse_yaml  # 20 ms, needed only where runtimes are read

    try:
        documents = parse_yaml(text, kubernetes=True)
    except ValueError as error:
        _warn_skipped(source, error)
        return
    for document in documents:
        if isinstance(document, Mapping) and document.get("kind", _KIND) not in kinds:
            continue
        try:
            yield parse(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _warn_skipped(source, error)


def _warn_skipped(source: str, error: Exception) -> None:
    """Log that a file or a runtime in it is ignored."""
    _log.warning("runtime %s is skipped: %s: %s", source, type(error).__name__, shorten(str(error)))
