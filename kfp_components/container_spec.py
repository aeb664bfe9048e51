"""The container of every component: one image, one program, one argument.

``{{$}}`` is the only placeholder: KFP's backend leaves Concat, IfPresent and defaults unresolved in places where its
local runner resolves them. All branching is in the program of the container.
"""

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Dict, List, Optional, get_args, get_origin, get_type_hints

from kfp import dsl
from kfp.components import ContainerComponent

from kfp_components.step.entrypoint import TARGETS, load_target
from kfp_components.step.executor_input import is_shared

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

#: The text of an argument in a docstring.
_ENTRY = re.compile(r"^    (\w+): .*\n(?: {5,}.*\n)*", re.M)
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
    """Decorator of a function whose signature and docstring are the interface of a container component.

    The inputs are those of the component's target, with their types and defaults, and the texts of the dataclasses
    among them: each is declared where the step reads it. What the function declares itself comes instead.
    """
    if func is None:
        return lambda func: component(func, task_config_passthroughs=task_config_passthroughs)
    own, target = inspect.signature(func), load_target(func.__name__)
    inputs = [each for each in _list_inputs(target) if each.name not in own.parameters]
    parameters = sorted([*inputs, *own.parameters.values()], key=lambda each: each.default is not each.empty)
    shared = filter(is_shared, get_type_hints(target).values())
    text, _, rest = (inspect.getdoc(func) or "").partition("\nReturns:\n")
    text, _, args = text.partition("\nArgs:\n")
    sections = [*((inspect.getdoc(each) or "").partition("\nArgs:\n")[2] for each in shared), args]
    entries = {match[1]: match[0] for match in _ENTRY.finditer("".join(f"{each}\n" for each in sections))}

    def interface(*_: Any) -> dsl.ContainerSpec:
        spec: dsl.ContainerSpec = func(*own.parameters)
        return spec

    interface.__name__ = func.__name__
    interface.__doc__ = (
        f"{text}\nVersion {VERSION} of trainjob-workflows. Image {get_image()}.\n\nArgs:\n"
        + "".join(entries[each.name] for each in parameters if each.name in entries)
        + f"\nReturns:\n{rest}"
    )
    interface.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # KFP reads it.
    spec = dsl.container_component(interface).component_spec
    if task_config_passthroughs:
        spec.task_config_passthroughs = list(task_config_passthroughs)
    return add_interface_digest(Component(component_spec=spec, pipeline_func=interface))


def _list_inputs(target: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield the inputs of a target as parameters of a component, in the types that KFP knows."""
    hints = get_type_hints(target, include_extras=True)
    for name, each in inspect.signature(target).parameters.items():
        if is_shared(hints[name]):
            yield from _list_inputs(hints[name])
        elif each.kind is each.KEYWORD_ONLY:
            yield each.replace(kind=each.POSITIONAL_OR_KEYWORD, annotation=_convert_hint(hints[name]))


def _convert_hint(hint: Any) -> Any:
    if get_origin(hint) is Annotated:  # An artifact, with the name of its class.
        return dsl.Input[getattr(dsl, hint.__metadata__[0])]
    if isinstance(hint, UnionType):
        return Optional[_convert_hint(get_args(hint)[0])]
    if get_origin(hint) is list:
        return List[_convert_hint(get_args(hint)[0])]  # type: ignore[misc]  # It is known now only.
    return Dict if get_origin(hint) is dict else hint


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
