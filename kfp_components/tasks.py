"""From a training definition, or a source of data, to tasks of a pipeline: the same objects that Airflow takes."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kfp import dsl, kubernetes
from kfp.dsl.container_component_class import ContainerComponent
from kfp.dsl.structures import OutputSpec

from kfp_components.initialize_dataset import initialize_dataset
from kfp_components.initialize_model import initialize_model
from kfp_components.look import look
from kfp_components.train import train
from kfp_components.wait import wait
from trainer_core import build
from trainer_core.build import Option, Trainer
from trainer_core.client import backend_for
from trainer_core.initializers import Initializer
from trainer_core.runtimes import Runtime

__all__ = ["initialize_task", "train_task", "wait_task"]

_INITIALIZE = {"dataset": initialize_dataset, "model": initialize_model}

#: KFP replaces these wherever they stand, also in shipped code.
_REPLACED = ("{{$", "{{channel:")
#: Linux takes no argument of 128 KiB or more.
_MAX_REQUEST_BYTES = 100_000
#: KFP cuts parameters at 10,000 characters; JSON of KFP's own may need a few more than ours.
_MAX_PARAMETER = 9_000


def train_task(
    *,
    trainer: Trainer | Mapping[str, Any] | None = None,
    runtime: str | Runtime | None = None,
    initializer: Initializer | None = None,
    options: Sequence[Option] | None = None,
    backend: Any = "local",
    metrics: Sequence[str] = (),
    **inputs: Any,
) -> dsl.PipelineTask:
    """Add a `train` task to the pipeline that is being defined, with caching off.

    The definition is packaged here, when the pipeline is compiled. What shall vary from run to run goes in by
    `inputs`, as pipeline parameters: ``func_args={"epochs": epochs}`` arrives in the function as the type that it
    declares.

    Args:
        trainer: What to run, as an object or as a dict of its fields; None to run the runtime as it is.
        runtime: Name of a runtime, or the runtime itself; None for the backend's default.
        initializer: What the job fetches first.
        options: Such as ``[Labels({...})]``.
        backend: Name of the backend, or a pipeline parameter with it; then without options, which depend on it.
        metrics: With ``wait=True``, metrics that become outputs of the task: ``task.outputs["accuracy"]``.
        **inputs: Further inputs of the component `train`.

    Raises:
        ValueError: Something cannot be right; nothing was added.
    """
    if metrics and inputs.get("wait") is not True:
        raise ValueError("metrics are known when the job has ended: give wait=True, or metrics to wait_task")
    request = build.plain(
        backend=backend_for(_known(backend, options)),
        runtime=runtime,
        trainer=trainer,
        initializer=initializer,
        options=options,
    )
    text = _checked(request)
    component = _with_metrics(train, metrics)
    if backend in ("local", "debug"):
        # The step's own container trains: what is set on the task is for it.
        component.component_spec.task_config_passthroughs = None
    if len(text) <= _MAX_PARAMETER:
        inputs["request"] = request
    else:
        component.component_spec.implementation.container.args.append(text)
    inputs.setdefault("run_id", dsl.PIPELINE_JOB_ID_PLACEHOLDER)
    task: dsl.PipelineTask = component(backend=backend, **inputs)
    return task.set_caching_options(False)


def initialize_task(
    role: str, *, storage_uri: Any, secrets: Mapping[str, Mapping[str, str]] | None = None, **inputs: Any
) -> dsl.PipelineTask:
    """Add a task of `initialize_dataset` or `initialize_model`, which KFP's cache skips while its source is the same.

    A task of `look` goes before it and runs each time: it asks for the commit, or the etags of the files, and fetches
    nothing. Secrets are put into its environment by reference.

    Args:
        role: ``"dataset"`` or ``"model"``.
        storage_uri: Where from.
        secrets: Secret settings by environment variable, as ``{"name": secret, "key": key}``; none of them can be a
            pipeline parameter.
        **inputs: Further inputs of the component.

    Raises:
        ValueError: Something cannot be right; nothing was added.
    """
    if role not in _INITIALIZE:
        raise ValueError(f"role must be one of {', '.join(_INITIALIZE)}, got {role!r}")
    if not isinstance(secrets or {}, Mapping):
        raise ValueError("secrets: KFP mounts what is known when the pipeline is compiled; give a dict")
    seen = {name: inputs[name] for name in ("ignore_patterns", "env") if name in inputs}
    looked = look(storage_uri=storage_uri, role=role, **seen).set_caching_options(False).set_retry(2)
    for variable, source in (secrets or {}).items():
        kubernetes.use_secret_as_env(looked, source["name"], {source["key"]: variable})
    if secrets:
        inputs["secrets"] = secrets
    task: dsl.PipelineTask = _INITIALIZE[role](storage_uri=storage_uri, version=looked.outputs["version"], **inputs)
    return task


def wait_task(*, metrics: Sequence[str] = (), **inputs: Any) -> dsl.PipelineTask:
    """Add a `wait` task to the pipeline that is being defined, with caching off.

    Args:
        metrics: Metrics that become outputs of the task: ``task.outputs["accuracy"]``. It fails if the job has none of
            that name.
        **inputs: Inputs of the component `wait`.

    Raises:
        ValueError: A metric cannot be the name of an output.
    """
    task: dsl.PipelineTask = _with_metrics(wait, metrics)(**inputs)
    return task.set_caching_options(False)


def _with_metrics(component: ContainerComponent, metrics: Sequence[str]) -> ContainerComponent:
    """A copy of a component with further outputs, for a single task; the entry point writes what is declared."""
    spec = copy.deepcopy(component.component_spec)
    for name in metrics:
        if not name.isidentifier() or name in spec.outputs:
            raise ValueError(
                f"metric {name!r} cannot be an output: it must be an identifier and none of {', '.join(spec.outputs)}; "
                "use metric_name"
            )
        spec.outputs[name] = OutputSpec(type="Float", description=f"The metric {name}.")
    return ContainerComponent(component_spec=spec, pipeline_func=component.pipeline_func)


def _known(backend: Any, options: Sequence[Option] | None) -> str:
    if isinstance(backend, str):
        return backend
    if options:
        raise ValueError("options depend on the backend: give its name as text, not as a pipeline parameter")
    return "local"


def _checked(request: Mapping[str, Any]) -> str:
    text = json.dumps(request, ensure_ascii=False)
    if len(text.encode()) > _MAX_REQUEST_BYTES:
        raise ValueError(
            f"the request has {len(text.encode())} bytes and KFP can pass {_MAX_REQUEST_BYTES}: ship the function as "
            "'module:function' in the runtime's image, or give the component `train` a request_file"
        )
    found = [mark for mark in _REPLACED if mark in text]
    if found:
        raise ValueError(
            f"the request holds {found[0]!r}, which KFP would replace; write the braces apart in the code, and pass "
            "pipeline parameters by func_args of train_task"
        )
    return text
