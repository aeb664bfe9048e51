"""From a training definition, or a source of data, to tasks of a pipeline: the same objects that Airflow takes."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from kfp import dsl, kubernetes
from kfp.dsl.pipeline_channel import PipelineChannel
from kfp.dsl.structures import ComponentSpec, InputSpec, OutputSpec

from kfp_components.container_spec import Component, add_interface_digest
from kfp_components.func_args import FuncArgs, get_input_type, split_func_args
from kfp_components.initialize_dataset import initialize_dataset
from kfp_components.initialize_model import initialize_model
from kfp_components.look import look
from kfp_components.search import search
from kfp_components.step.initializer_source import KFP_STORE_KEYS, KFP_STORE_SECRET, STORE_ENTRIES
from kfp_components.step.request_encoding import can_pass_as_parameter, can_store, encode_request
from kfp_components.step.wait import WaitInputs
from kfp_components.submit import submit
from kfp_components.train import train
from kfp_components.wait import wait as wait_component
from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.client import backend_for
from trainer_core.definition import request_builder
from trainer_core.definition.initializers import Initializer
from trainer_core.definition.request_builder import Option, Trainer
from trainer_core.definition.trainers import CustomTrainer, trainer_from_dict
from trainer_core.model.config import config_from_dict
from trainer_core.model.func_args import PartialArgs
from trainer_core.model.request import KUEUE_QUEUE, Project
from trainer_core.model.runtimes import Runtime
from trainer_core.packaging import code_location
from trainer_core.packaging.project import read_project
from trainer_core.packaging.project_functions import find_module, read_signature
from trainer_core.search.definition import build_search_data
from trainer_core.search.space import parse_space
from trainer_core.search.template import add_example

__all__ = ["initialize_task", "search_task", "train_task", "wait_task"]

_INITIALIZE = {"dataset": initialize_dataset, "model": initialize_model}

#: KFP retries a task only within this time of its first start; its default is an hour.
_RETRY_WINDOW = "30d"
#: Start of a pipeline parameter that became part of a string.
_PASTED = "{{channel:"
#: KFP's driver takes a container of 131,072 bytes as escaped JSON; the rest is for image, environment and resources.
_MAX_REQUEST_BYTES = 120_000
#: A longer request is compressed: KFP's driver takes a task of 131,072 bytes as escaped JSON.
_MAX_PARAMETER = 9_000


def train_task(
    *,
    trainer: Trainer | Mapping[str, Any] | None = None,
    runtime: str | Runtime | None = None,
    initializer: Initializer | None = None,
    options: Sequence[Option] | None = None,
    backend: Any = "local",
    wait: bool = False,
    metrics: Sequence[str] = (),
    **inputs: Any,
) -> dsl.PipelineTask:
    """Add a task of `submit`, or with `wait` of `train`, to the pipeline that is being defined, with caching off.

    The definition is packaged here, when the pipeline is compiled, and arrives byte for byte; files of a project that
    KFP cannot pass are written to the trainer's ``code_uri`` (``s3://``). What varies from run to run goes in by
    `inputs`, as pipeline parameters: ``func_args={"epochs": epochs}`` arrives in the function as the type that it
    declares, also a list, a dict or a text with quotes and line ends.

    Args:
        trainer: What to run, as an object or as a dict of its fields; None to run the runtime as it is.
        runtime: Name of a runtime, or the runtime itself; None for the backend's default.
        initializer: What the job fetches first.
        options: Such as ``[Labels({...})]``. `OnBackend` has those that are for one backend.
        backend: Name of the backend, or a pipeline parameter with it; the options are then checked when the task runs,
            before anything is created.
        wait: Whether the task follows the job to its end, and has its result, metrics and model as outputs. False for a
            task that ends at once, with `wait_task` after it.
        metrics: With ``wait=True``, metrics that become outputs of the task: ``task.outputs["accuracy"]``.
        **inputs: Further inputs of the component.

    Raises:
        ValueError: An argument is invalid; nothing was added.
        BackendUnavailableError: The files cannot be written to ``code_uri``.
    """
    if not isinstance(wait, bool):
        raise ValueError("wait decides which component the task has: give True or False, not a pipeline parameter")
    if metrics and not wait:
        raise ValueError("metrics are known when the job has ended: give wait=True, or metrics to wait_task")
    _check_allow_failure(metrics, inputs)
    of_wait = train.component_spec.inputs.keys() - submit.component_spec.inputs.keys()
    if not wait and (early := sorted(of_wait & inputs.keys())):
        raise ValueError(f"{', '.join(early)}: only a task that waits takes it; give wait=True")
    component = train if wait else submit
    spec = _copy_with_metrics(component, metrics)
    definition = {"runtime": runtime, "trainer": trainer, "initializer": initializer, "options": options}
    return _add_task(component, spec, definition, backend, inputs)


def search_task(
    *,
    search_space: Any,
    trainer: Trainer | Mapping[str, Any],
    runtime: str | Runtime | None = None,
    initializer: Initializer | None = None,
    options: Sequence[Option] | None = None,
    objectives: Any = None,
    trial_config: Any = None,
    algorithm: Any = None,
    stop: Any = None,
    backend: Any = "local",
    **inputs: Any,
) -> dsl.PipelineTask:
    """Add a task of `search` to the pipeline that is being defined, with caching off.

    The definition is packaged here, as by `train_task`. The parts of the search are objects or plain data; a number in
    plain data can be a pipeline parameter, such as ``trial_config={"num_trials": trials}``.

    Args:
        search_space: Distribution of each parameter, such as ``{"lr": Search.loguniform(1e-4, 1e-1)}``.
        trainer: What each trial runs, as an object or as a dict of its fields.
        runtime: Name of a runtime, or the runtime itself; None for the backend's default.
        initializer: What each trial fetches first.
        options: Such as ``[Labels({...})]``, for each trial.
        objectives: The objective, and further metrics; None for the smallest ``loss``.
        trial_config: The limits; None for 10 trials, one after the other.
        algorithm: How parameters are chosen; None for random search.
        stop: The rule that ends losers; None for none.
        backend: Name of the backend, or a pipeline parameter with it.
        **inputs: Further inputs of the component.

    Raises:
        ValueError: An argument is invalid; nothing was added.
        BackendUnavailableError: The files cannot be written to ``code_uri``.
    """
    parts = build_search_data(
        _holds_parameter,
        search_space=search_space,
        objectives=objectives,
        trial_config=trial_config,
        algorithm=algorithm,
        stop=stop,
    )
    known = _parse_known(search_space)
    trainer, late = add_example(trainer, known), [name for name, each in (known or {}).items() if each is None]
    definition = {"runtime": runtime, "trainer": trainer, "initializer": initializer, "options": options}
    spec = copy.deepcopy(search.component_spec)
    return _add_task(search, spec, definition, backend, {**inputs, **parts}, late)


def _parse_known(space: Any) -> dict[str, Any] | None:
    """Return the distributions by parameter, None for one that a pipeline parameter decides; None if it decides all."""
    if not isinstance(space, Mapping) or _holds_parameter(list(space)):
        return None
    return {name: None if _holds_parameter(each) else parse_space({name: each})[name] for name, each in space.items()}


def _holds_parameter(value: Any) -> bool:
    """Return whether a value is, or holds, a pipeline parameter."""
    leaves = validation.iterate_leaves(value)
    return any(isinstance(leaf, PipelineChannel) or (isinstance(leaf, str) and _PASTED in leaf) for leaf in leaves)


def _add_task(
    component: Component,
    spec: ComponentSpec,
    definition: Mapping[str, Any],
    backend: Any,
    inputs: dict[str, Any],
    late: Sequence[str] = (),
) -> dsl.PipelineTask:
    """Package a definition and add a task of a component with it; `spec` is a copy of the component's.

    The values of the arguments `late` are known when the task runs.
    """
    settings = inputs.get("backend_config")
    if isinstance(backend, str) and settings is not None and not _holds_parameter(settings):
        config_from_dict(backend, settings)
    func_args = split_func_args(inputs.pop("func_args", None))
    trainer, placeholders = _merge_func_args(definition["trainer"], func_args)
    request = request_builder.build_request_data(
        # A pipeline parameter is known when the task runs, and checked there.
        **{**definition, "backend": backend_for(backend) if isinstance(backend, str) else None, "trainer": trainer}
    )
    for name in (*placeholders, *late):
        request["trainer"].get("code", {}).get("args", {}).pop(name, None)
    # A pipeline parameter equals every text.
    if isinstance(backend, str) and backend in ("local", "debug"):
        # The step's own container trains: what is set on the task is for it.
        spec.task_config_passthroughs = None
    for name, value in func_args.inputs.items():
        spec.inputs[name] = InputSpec(type=get_input_type(value), optional=True)
    if func_args.parameter is not None:
        inputs["func_args"] = func_args.parameter
    inputs.update(func_args.inputs)
    _pass_request(spec, inputs, request)
    _check_constants(inputs)
    task = _build_component(component, spec)(backend=backend, **inputs)
    if spec.task_config_passthroughs and isinstance(backend, str):
        task.platform_config = _PlatformConfig(task.platform_config)
    return task


class _PlatformConfig(dict[str, Any]):
    """What `kfp.kubernetes` sets on a task that submits; refuses what is meant for training and would not get there."""

    def __setitem__(self, platform: str, config: dict[str, Any]) -> None:
        volume = "use RuntimePatch with a volume of the pod template"
        functions = {"emptyDirMounts": "empty_dir_mount", "genericEphemeralVolume": "add_ephemeral_volume"}
        found = [(functions[field], volume) for field in config if field in functions]
        if KUEUE_QUEUE in config.get("podMetadata", {}).get("labels", {}):
            found.append((f"add_pod_label {KUEUE_QUEUE}", "use QueueName"))
        for setting, remedy in found:
            raise ValueError(
                f"{setting}: KFP sets it on the pod of the step and not on the pods that train; {remedy} in options"
            )
        super().__setitem__(platform, config)


def initialize_task(
    role: str,
    *,
    storage_uri: Any,
    endpoint: Any = None,
    region: Any = None,
    secret: Any = None,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    **inputs: Any,
) -> dsl.PipelineTask:
    """Add a task of `initialize_dataset` or `initialize_model`, which KFP's cache skips while its source is the same.

    A task of `look` goes before it and runs each time: it asks for the commit, or the etags of the files, and fetches
    nothing. Secrets are put into its environment by reference.

    Args:
        role: ``"dataset"`` or ``"model"``.
        storage_uri: Where from: hf://, s3://, file://, or minio:// for KFP's own object store, whose Secret
            `mlpipeline-minio-artifact` is used.
        endpoint: Address of an S3-compatible store, or a pipeline parameter with it; empty or None for AWS.
        region: Its region, in the same way.
        secret: Name of a Secret with the keys of that store in its entries `accesskey` and `secretkey`, or an optional
            pipeline parameter with it; None for none.
        secrets: Other secret settings by environment variable, as ``{"name": secret, "key": key}``; none of them can be
            a pipeline parameter.
        **inputs: Further inputs of the component.

    Raises:
        ValueError: An argument is invalid; nothing was added.
    """
    if role not in _INITIALIZE:
        raise ValueError(f"role must be one of {', '.join(_INITIALIZE)}, got {redact(role)}")
    if not isinstance(secrets or {}, Mapping):
        raise ValueError("secrets: KFP mounts what is known when the pipeline is compiled; give a dict")
    store = {name: value for name, value in (("ENDPOINT", endpoint), ("REGION", region)) if value is not None}
    if store:
        inputs["env"] = {**inputs.get("env", {}), **store}
    seen = {name: inputs[name] for name in ("ignore_patterns", "env") if name in inputs}
    looked = look(storage_uri=storage_uri, role=role, **seen)
    looked.set_retry(2, backoff_max_duration=_RETRY_WINDOW)
    kfp_store = {entry: KFP_STORE_KEYS[variable] for variable, entry in STORE_ENTRIES.items()}
    kubernetes.use_secret_as_env(looked, KFP_STORE_SECRET, kfp_store, optional=True)
    if secret is not None:
        kubernetes.use_secret_as_env(looked, secret, {entry: variable for variable, entry in STORE_ENTRIES.items()})
        inputs["secret"] = secret
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
    _check_allow_failure(metrics, inputs)
    _check_constants(inputs)
    return _build_component(wait_component, _copy_with_metrics(wait_component, metrics))(**inputs)


def _check_constants(inputs: Mapping[str, Any]) -> None:
    """Refuse constants that the step or KFP's database does not take; pipeline parameters are not known here."""
    # KFP refuses values of other types.
    numbers: dict[str, Any] = {name: value for name, value in inputs.items() if isinstance(value, int)}
    WaitInputs(**{field.name: numbers[field.name] for field in fields(WaitInputs) if field.name in numbers})
    for name in ("num_nodes", "num_proc_per_node"):
        validation.check_count(name, numbers.get(name), minimum=0)
    for name, value in inputs.items():
        if not can_store(repr(value)):
            raise ValueError(
                f"{name}: KFP stores no characters beyond U+FFFF, such as emoji, and refuses the run: {redact(value)}"
            )


def _check_allow_failure(metrics: Sequence[str], inputs: Mapping[str, Any]) -> None:
    if metrics and inputs.get("allow_failure"):
        raise ValueError("allow_failure: a failed job has no metrics that could be outputs; compare jobs with best_of")


def _build_component(component: Component, spec: ComponentSpec) -> Component:
    """Return a component for a single task, of a changed copy of the spec of another one."""
    return add_interface_digest(Component(component_spec=spec, pipeline_func=component.pipeline_func))


def _copy_with_metrics(component: Component, metrics: Sequence[str]) -> ComponentSpec:
    """Return a copy of a component's spec with metrics as outputs; the entry point writes what is declared."""
    validation.check_strings("metrics", metrics, "accuracy")
    spec = copy.deepcopy(component.component_spec)
    for name in metrics:
        if not name.isidentifier() or name in spec.outputs:
            raise ValueError(
                f"metric {redact(name)} cannot be an output: it must be an identifier and none of "
                f"{', '.join(spec.outputs)}; "
                "use metric_name"
            )
        spec.outputs[name] = OutputSpec(type="Float", description=f"The metric {name}.")
    return spec


def _merge_func_args(trainer: Trainer | Mapping[str, Any] | None, func_args: FuncArgs) -> tuple[Any, list[str]]:
    """Return the trainer with the arguments of the task, and the names that only stand for values of `func_args`."""
    if not func_args.request and func_args.parameter is None:
        return trainer, []
    trainer = trainer_from_dict(trainer) if isinstance(trainer, Mapping) else trainer
    if not isinstance(trainer, CustomTrainer):
        kind = type(trainer).__name__ if trainer else "no trainer"
        raise ValueError(f"func_args are for a training function, and the task has {kind}; give a CustomTrainer")
    known = {**(trainer.func_args or {}), **func_args.request}
    if isinstance(func_args.parameter, Mapping):
        late = set(func_args.parameter)
    elif func_args.parameter is not None:
        # A whole dict as pipeline parameter: it may hold whatever the function still needs.
        late = _list_required_names(trainer) - known.keys()
    else:
        late = set()
    placeholders = sorted(late)
    args = {**known, **dict.fromkeys(placeholders)}
    is_partial = isinstance(trainer.func_args, PartialArgs)
    return replace(trainer, func_args=PartialArgs(args) if is_partial else args), placeholders


def _list_required_names(trainer: CustomTrainer) -> set[str]:
    func = trainer.func
    if isinstance(func, str) and trainer.code is not None:
        func = read_signature(func, find_module(func, read_project(trainer.code))) or func
    if not callable(func):
        return set()
    parameters = inspect.signature(func).parameters.values()
    return {p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _store_project(request: dict[str, Any]) -> bool:
    """Move the files of the request's project into the bucket that the trainer names; return whether it names one."""
    trainer = request.get("trainer") or {}
    code, place = trainer.get("code") or {}, trainer.get("code_uri") or ""
    # A folder of the machine that compiles is another one where the pipeline runs.
    if not code.get("project") or not place.startswith("s3://"):
        return False
    stored = code_location.store_project(Project.model_validate(code["project"]), place)
    code["project"] = stored.model_dump(mode="json", exclude_none=True)
    return True


def _pass_request(spec: ComponentSpec, inputs: dict[str, Any], request: dict[str, Any]) -> None:
    """Pass a request as an input, where it can be read in the YAML, or else as an encoded argument."""
    text = json.dumps(request, ensure_ascii=False)
    if _PASTED in text:
        raise ValueError(
            "the definition holds a pipeline parameter, which is known only when the pipeline runs; pass it by "
            "func_args, num_nodes or another input of train_task"
        )
    if len(text) <= _MAX_PARAMETER and can_pass_as_parameter(request):
        inputs["request"] = request
        return
    encoded = encode_request(request)
    if len(encoded) > _MAX_REQUEST_BYTES and _store_project(request):
        encoded = encode_request(request)
    if len(encoded) > _MAX_REQUEST_BYTES:
        raise ValueError(
            f"the request has {len(encoded)} bytes when it is compressed, and KFP can pass {_MAX_REQUEST_BYTES}: give "
            "code_uri='s3://<bucket>/<path>' where code has files, name what the training does not need in "
            ".trainjobignore, ship the code in the runtime's image, or give the component `train` a request_file"
        )
    spec.implementation.container.args.append(f"--request={encoded}")
