"""Run pipelines on this machine: host_runner without a container engine, docker_runner in the components' image.

KFP's local runner for subprocesses refuses container components. Ours are a command and one argument, which need no
container where this package is installed, so the refusal is lifted for the time of a ``with`` block. What runs is the
components' own command and arguments, also those of a compiled pipeline, and a non-zero exit fails the task.

Faults of KFP's local runners are mended meanwhile. The one for subprocesses writes the interpreter's path over every
"python3" it finds, in inputs and shipped code too; the one for containers takes a container that is gone before it is
asked for one that succeeded; a `dsl.If` on a named output of a task is always false; and tasks of a loop, which run at
the same time, each put back the `print` and the log handlers that they found, which were another's.
"""

from __future__ import annotations

import builtins
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import kfp
from kfp import local
from kfp.local import config, io, subprocess_task_handler
from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

__all__ = ["docker_runner", "host_runner"]

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
    with _running(local.SubprocessRunner(use_venv=False), root, raise_on_error, _on_the_host()):
        yield


@contextmanager
def docker_runner(root: str | Path, raise_on_error: bool = True, **container: Any) -> Iterator[None]:
    """Let pipelines and components that are called in the block run in containers on this machine.

    One block at a time: KFP keeps its local settings for the whole process. The engine is found by DOCKER_HOST.

    Args:
        root: Folder for artifacts and outputs; each run makes its own in it.
        raise_on_error: Raise RuntimeError when a task fails.
        **container: Arguments of `docker.containers.run`; by default the container's user is that of this process, who
            may write into the folder.

    Raises:
        RuntimeError: kfp has another version than this is written for.
    """
    from kfp.local import docker_task_handler  # It imports docker.

    runner = local.DockerRunner(**{"user": f"{os.getuid()}:{os.getgid()}", **container})
    with _running(runner, root, raise_on_error, [(docker_task_handler, "run_docker_container", _run_container)]):
        yield


@contextmanager
def _running(
    runner: Any, root: str | Path, raise_on_error: bool, replacements: list[tuple[Any, str, Any]]
) -> Iterator[None]:
    if not kfp.__version__.startswith(_KNOWN):
        raise RuntimeError(f"{__name__} is written for kfp {_KNOWN}x, found {kfp.__version__}; use kfp.local as it is")
    before = config.LocalExecutionConfig.instance
    resolved = staticmethod(_outputs_resolved(ConditionEvaluator._resolve_pipeline_channel))
    with ExitStack() as patches:
        patches.enter_context(_output_as_it_was())
        for owner, name, ours in [*replacements, (ConditionEvaluator, "_resolve_pipeline_channel", resolved)]:
            patches.enter_context(mock.patch.object(owner, name, ours))
        local.init(runner, pipeline_root=str(root), raise_on_error=raise_on_error)
        try:
            yield
        finally:
            config.LocalExecutionConfig.instance = before


@contextmanager
def _output_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    with mock.patch.object(builtins, "print", print):
        try:
            yield
        finally:
            root.setLevel(level)
            root.handlers[:] = handlers


def _on_the_host() -> list[tuple[Any, str, Any]]:
    handler = subprocess_task_handler.SubprocessTaskHandler
    replaced = _python_replaced(subprocess_task_handler.replace_python_executable)
    return [
        (handler, "validate_not_container_component", _let_pass),
        (handler, "validate_image", _let_pass),
        (subprocess_task_handler, "replace_python_executable", replaced),
    ]


def _run_container(client: Any, image: str, command: list[str], volumes: dict[str, Any], **arguments: Any) -> int:
    """Run a container to its end and return its exit code; KFP's own lets the engine remove it first."""
    from docker.errors import ImageNotFound

    try:
        client.images.get(image)
    except ImageNotFound:
        client.images.pull(image)
    container = client.containers.run(image, command, detach=True, volumes=volumes, **arguments)
    try:
        for piece in container.logs(stream=True, follow=True):
            sys.stdout.write(piece.decode(errors="replace"))
        return int(container.wait()["StatusCode"])
    finally:
        container.remove(force=True)


def _let_pass(*_: Any) -> None:
    """Stand in for a check of KFP's subprocess runner."""


def _python_replaced(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def replace(full_command: list[str], new_executable: str) -> list[str]:
        if full_command[: len(_COMMAND)] == _COMMAND:
            return [new_executable, *full_command[1:]]
        return original(full_command, new_executable)

    return replace


def _outputs_resolved(original: Callable[[str, io.IOStore], Any]) -> Callable[[str, io.IOStore], Any]:
    def resolve(channel_ref: str, io_store: io.IOStore) -> Any:
        # Names of outputs have no dash, those of tasks may: wait-2-metric is the output metric of the task wait-2.
        task, _, output = channel_ref.removeprefix("pipelinechannel--").rpartition("-")
        try:
            return io_store.get_task_output(task, output)
        except ValueError:
            return original(channel_ref, io_store)

    return resolve
