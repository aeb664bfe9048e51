"""From a training definition to a task of a pipeline: the same objects that Airflow and Python take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kfp import dsl

from kfp_components.train import train
from trainer_core import build
from trainer_core.build import Option, Trainer
from trainer_core.client import backend_for
from trainer_core.initializers import Initializer
from trainer_core.runtimes import Runtime

__all__ = ["train_task"]

#: KFP replaces these wherever they stand, also in shipped code.
_REPLACED = ("{{$", "{{channel:")
#: Linux takes no argument of 128 KiB or more, and the executor input holds more than the request.
_MAX_REQUEST_BYTES = 100_000


def train_task(
    *,
    trainer: Trainer | Mapping[str, Any],
    runtime: str | Runtime | None = None,
    initializer: Initializer | None = None,
    options: Sequence[Option] | None = None,
    backend: Any = "local",
    **inputs: Any,
) -> dsl.PipelineTask:
    """Add a `train` task to the pipeline that is being defined, with caching off.

    The definition is packaged here, when the pipeline is compiled. What shall vary from run to run goes in by
    `inputs`, as pipeline parameters: ``func_args={"epochs": epochs}`` arrives in the function as the type that it
    declares.

    Args:
        trainer: What to run, as an object or as a dict of its fields.
        runtime: Name of a runtime, or the runtime itself; None for the backend's default.
        initializer: What the job fetches first.
        options: Such as ``[Labels({...})]``.
        backend: Name of the backend, or a pipeline parameter with it; then without options, which depend on it.
        **inputs: Further inputs of the component `train`.

    Raises:
        ValueError: Something cannot be right; nothing was added.
    """
    request = build.plain(
        backend=backend_for(_known(backend, options)),
        runtime=runtime,
        trainer=trainer,
        initializer=initializer,
        options=options,
    )
    _check(request)
    task: dsl.PipelineTask = train(request=request, backend=backend, **inputs)
    return task.set_caching_options(False)


def _known(backend: Any, options: Sequence[Option] | None) -> str:
    if isinstance(backend, str):
        return backend
    if options:
        raise ValueError("options depend on the backend: give its name as text, not as a pipeline parameter")
    return "local"


def _check(request: Mapping[str, Any]) -> None:
    text = json.dumps(request, ensure_ascii=False)
    if len(text.encode()) > _MAX_REQUEST_BYTES:
        raise ValueError(
            f"the request has {len(text.encode())} bytes and KFP can pass {_MAX_REQUEST_BYTES}: ship the function as "
            "'module:function' in the runtime's image"
        )
    found = [mark for mark in _REPLACED if mark in text]
    if found:
        raise ValueError(
            f"the request holds {found[0]!r}, which KFP would replace; write the braces apart in the code, and pass "
            "pipeline parameters by func_args of train_task"
        )
