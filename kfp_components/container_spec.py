"""The container of every component: one image, one program, one argument.

``{{$}}`` is the only placeholder: KFP's backend leaves Concat, IfPresent and defaults unresolved in places where its
local runner resolves them. All branching is in the program of the container.
"""

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Optional

from kfp import dsl
from kfp.components import ContainerComponent

from kfp_components.step.entrypoint import TARGETS

#: Version of the components: that of this package, and of the image.
VERSION = "0.1.0"
#: Built from `Dockerfile` beside this file.
DEFAULT_IMAGE = f"trainjob-workflows/kfp-components:{VERSION}"
#: Names the image in your own registry, when components are compiled: ``registry/name@sha256:…``.
IMAGE_VARIABLE = "TRAINJOB_KFP_IMAGE"

#: What KFP passes to `train` of what is set on its task. The step's own pod gets what it may need too: its
#: environment and volumes. It must not take the GPUs, nor stand on their machines.
PASSTHROUGHS = [
    dsl.TaskConfigPassthrough(field=field, apply_to_task=field.name in ("ENV", "KUBERNETES_VOLUMES"))
    for field in dsl.TaskConfigField
]

#: What differs for each run and each task of a DAG. KFP's cache key has the inputs of a task: a component whose effects
#: must not be skipped has these inputs, which KFP resolves where they are the whole value of an input.
_IDENTITY = {"run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER, "task_name": dsl.PIPELINE_TASK_NAME_PLACEHOLDER}

_PINNED = re.compile(r"[^\s@]+(@sha256:[0-9a-f]{64}|:(?!latest$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})")


def get_image() -> str:
    """Return the image of the components, which is pinned: KFP would reuse results of another image of that name."""
    name = os.environ.get(IMAGE_VARIABLE) or DEFAULT_IMAGE
    if not _PINNED.fullmatch(name):
        raise ValueError(f"{IMAGE_VARIABLE}: {name!r} is not pinned; write name@sha256:… or name:version, not latest")
    return name


class Component(ContainerComponent):
    """A component that must run in each run and task: it fills in `run_id` and `task_name`, and is never cached."""

    def __call__(self, *args: Any, **inputs: Any) -> dsl.PipelineTask:  # noqa: D102 - that of the base class
        identity = {name: value for name, value in _IDENTITY.items() if name in (self.component_spec.inputs or {})}
        task: dsl.PipelineTask = super().__call__(*args, **{**identity, **inputs})
        task._inputs = _Inputs(task._inputs)
        return task.set_caching_options(False) if identity else task


class _Inputs(dict[str, Any]):
    """The inputs of a task: `ignore_upstream_failure` of KFP reads also those that are not given."""

    def __missing__(self, name: str) -> None:
        return None


def component(
    func: Optional[Callable[..., Any]] = None,
    *,
    task_config_passthroughs: Optional[Sequence[dsl.TaskConfigPassthrough]] = None,
) -> Any:
    """Decorator of a function whose signature and docstring are the interface of a container component."""
    if func is None:
        return lambda func: component(func, task_config_passthroughs=task_config_passthroughs)
    text, args, rest = (inspect.getdoc(func) or "").partition("\nArgs:\n")
    func.__doc__ = f"{text}\nVersion {VERSION} of trainjob-workflows. Image {get_image()}.\n{args}{rest}"
    spec = dsl.container_component(func).component_spec
    if task_config_passthroughs:
        spec.task_config_passthroughs = list(task_config_passthroughs)
    return add_interface_digest(Component(component_spec=spec, pipeline_func=func))


def add_interface_digest(component: Component) -> Component:
    """Add a digest of a component's interface to the arguments of its container.

    KFP stores the spec of a component under a hash of its container: of two components with equal containers, both get
    the inputs and outputs of the first. KFP's cache key has the arguments of the container, but no defaults of inputs.
    """
    spec = component.component_spec
    interface = {
        "inputs": {name: [str(each.type), each.default, each.optional] for name, each in (spec.inputs or {}).items()},
        "outputs": {name: str(each.type) for name, each in (spec.outputs or {}).items()},
        "passthroughs": [[str(each.field), each.apply_to_task] for each in spec.task_config_passthroughs or ()],
    }
    digest = hashlib.sha256(json.dumps(interface, sort_keys=True).encode()).hexdigest()[:12]
    args = [arg for arg in spec.implementation.container.args if not str(arg).startswith("--interface=")]
    spec.implementation.container.args = [*args, f"--interface={digest}"]
    return component


def build_container_spec(target: str) -> dsl.ContainerSpec:
    """Return the container that runs one target of the entry point."""
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; known are {', '.join(sorted(TARGETS))}")
    # No shell in between, so that SIGTERM reaches the program.
    return dsl.ContainerSpec(
        image=get_image(),
        command=["python3", "-m", "kfp_components.step.entrypoint"],
        args=[target, dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER],
    )
