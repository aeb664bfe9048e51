"""Run pipelines on this machine: host_runner without a container engine, docker_runner in the components' image.

KFP's local runner for subprocesses refuses container components. These components need no container where this package
is installed, so a ``with`` block lifts the refusal. It runs the components' own command and arguments, also those of a
compiled pipeline, and a non-zero exit code fails the task.

The block also works around faults of KFP's local runners. The subprocess runner replaces every "python3" by the path of
the interpreter, also in inputs and in shipped code, and quotes no path with a blank; the container runner counts a
container that is removed before its exit code is read as a success; nulls in results, and optional parameters without a
default, fail; a `dsl.If` on a named output of a task is always false; and tasks of a loop, which run at the same time,
restore each other's `print` and log handlers.
"""

from __future__ import annotations

import builtins
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import kfp
from google.protobuf import json_format, struct_pb2  # type: ignore[import-untyped]  # protobuf ships no types
from kfp import local
from kfp.local import config, executor_input_utils, executor_output_utils, io, subprocess_task_handler
from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

__all__ = ["docker_runner", "host_runner"]

#: Versions of kfp whose inside is known.
_SUPPORTED_VERSION = "2.17."
_COMMAND = ["python3", "-m", "kfp_components.step.entrypoint"]


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
    with _configure_runner(local.SubprocessRunner(use_venv=False), root, raise_on_error, _list_host_replacements()):
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
    with _configure_runner(
        runner, root, raise_on_error, [(docker_task_handler, "run_docker_container", _run_container)]
    ):
        yield


@contextmanager
def _configure_runner(
    runner: Any, root: str | Path, raise_on_error: bool, replacements: list[tuple[Any, str, Any]]
) -> Iterator[None]:
    if not kfp.__version__.startswith(_SUPPORTED_VERSION):
        raise RuntimeError(
            f"{__name__} is written for kfp {_SUPPORTED_VERSION}x, found {kfp.__version__}; use kfp.local as it is"
        )
    before = config.LocalExecutionConfig.instance
    resolved = staticmethod(_build_output_resolver(ConditionEvaluator._resolve_pipeline_channel))
    with ExitStack() as patches:
        patches.enter_context(_restore_output())
        common = [(ConditionEvaluator, "_resolve_pipeline_channel", resolved), *_list_null_replacements()]
        for owner, name, ours in [*replacements, *common]:
            patches.enter_context(mock.patch.object(owner, name, ours))
        local.init(runner, pipeline_root=str(root), raise_on_error=raise_on_error)
        try:
            yield
        finally:
            config.LocalExecutionConfig.instance = before


@contextmanager
def _restore_output() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    with mock.patch.object(builtins, "print", print):
        try:
            yield
        finally:
            root.setLevel(level)
            root.handlers[:] = handlers


def _list_host_replacements() -> list[tuple[Any, str, Any]]:
    handler = subprocess_task_handler.SubprocessTaskHandler
    replaced = _build_python_replacement(subprocess_task_handler.replace_python_executable)
    return [
        (handler, "validate_not_container_component", _skip_check),
        (handler, "validate_image", _skip_check),
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


def _list_null_replacements() -> list[tuple[Any, str, Any]]:
    """Nulls in results, arguments and defaults, which KFP's launcher takes and its local runner refuses."""
    builder = SimpleNamespace(to_protobuf_value=_to_protobuf_value)
    original = executor_output_utils.pb2_value_to_python

    def read(value: struct_pb2.Value) -> Any:
        # A Value without a kind is the default of an optional parameter that has none.
        return None if value.WhichOneof("kind") is None else original(value)

    return [
        (executor_input_utils, "pipeline_spec_builder", builder),
        (executor_output_utils, "pipeline_spec_builder", builder),
        (executor_output_utils, "pb2_value_to_python", read),
    ]


def _to_protobuf_value(value: Any) -> struct_pb2.Value:
    return json_format.ParseDict(value, struct_pb2.Value())


def _skip_check(*_: Any) -> None:
    """Stand in for a check of KFP's subprocess runner."""


def _build_python_replacement(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def replace(full_command: list[str], new_executable: str) -> list[str]:
        if full_command[: len(_COMMAND)] == _COMMAND:
            return [new_executable, *full_command[1:]]
        return original(full_command, shlex.quote(new_executable))  # It becomes a word of a shell script.

    return replace


def _build_output_resolver(original: Callable[[str, io.IOStore], Any]) -> Callable[[str, io.IOStore], Any]:
    def resolve(channel_ref: str, io_store: io.IOStore) -> Any:
        # Names of outputs have no dash, those of tasks may: wait-2-metric is the output metric of the task wait-2.
        task, _, output = channel_ref.removeprefix("pipelinechannel--").rpartition("-")
        try:
            return io_store.get_task_output(task, output)
        except ValueError:
            return original(channel_ref, io_store)

    return resolve
