"""host_runner: run container components on this machine without a container engine.

KFP's local runner for subprocesses refuses container components. Ours are a command and one argument, which need no
container where this package is installed, so the refusal is lifted for the time of a ``with`` block. What runs is the
components' own command and arguments, also those of a compiled pipeline, and a non-zero exit fails the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import kfp
from kfp import local
from kfp.local import config, subprocess_task_handler

__all__ = ["host_runner"]

#: Versions of kfp whose inside is known.
_KNOWN = "2.17."
_COMMAND = ["python3", "-m", "kfp_components._entry"]


@contextmanager
def host_runner(root: str | Path, raise_on_error: bool = True) -> Iterator[None]:
    """Let pipelines and components that are called in the block run on this machine.

    One block at a time: KFP keeps its local settings for the whole process.

    Args:
        root: Folder for artifacts and outputs; each run makes its own in it.
        raise_on_error: Raise RuntimeError when a task fails.

    Raises:
        RuntimeError: kfp has another version than this is written for.
    """
    if not kfp.__version__.startswith(_KNOWN):
        raise RuntimeError(f"host_runner is written for kfp {_KNOWN}x, found {kfp.__version__}; use local.DockerRunner")
    handler = subprocess_task_handler.SubprocessTaskHandler
    before = config.LocalExecutionConfig.instance
    with ExitStack() as patches:
        for check in ("validate_not_container_component", "validate_image"):
            patches.enter_context(mock.patch.object(handler, check, _let_pass))
        replace = _python_replaced(subprocess_task_handler.replace_python_executable)
        patches.enter_context(mock.patch.object(subprocess_task_handler, "replace_python_executable", replace))
        local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(root), raise_on_error=raise_on_error)
        try:
            yield
        finally:
            config.LocalExecutionConfig.instance = before


def _let_pass(*_: Any) -> None:
    """Stand in for a check of KFP's subprocess runner."""


def _python_replaced(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """KFP writes this interpreter's path over every "python3", inputs and shipped code included."""

    def replace(full_command: list[str], new_executable: str) -> list[str]:
        if full_command[: len(_COMMAND)] == _COMMAND:
            return [new_executable, *full_command[1:]]
        return original(full_command, new_executable)

    return replace
