"""Arguments of a training function that are known only when a pipeline runs.

KFP resolves an input that is a pipeline parameter as a whole, with its type. A parameter inside a dict is pasted into
the text of the dict: it loses its type, and a quote or line end in it breaks the dict. So each such value becomes a
separate input, and the arguments refer to it by the input's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp.dsl.pipeline_channel import PipelineChannel

from kfp_components.step.executor_input import INPUT_REFERENCE
from trainer_core.base import validation

#: Types of inputs, by the first words of what KFP calls the type of a parameter, an output or a loop's item.
_TYPES = {
    "int": "Integer",
    "integer": "Integer",
    "float": "Float",
    "double": "Float",
    "bool": "Boolean",
    "boolean": "Boolean",
    "list": "List",
    "dict": "Dict",
    "jsonobject": "Dict",
    "jsonarray": "List",
}

#: A pipeline parameter that became part of a string, as in an f-string.
_PASTED = re.compile(r"\{\{channel:")
#: A placeholder, such as the id of the run: KFP resolves it in an input that is a string, and not inside a dict.
_PLACEHOLDER = re.compile(r"\{\{\$\.[a-z_]+\}\}")


@dataclass
class FuncArgs:
    """The arguments of a training function, split by how they travel."""

    #: Part of the request: constants, and references to the inputs.
    request: dict[str, Any] = field(default_factory=dict)
    #: Inputs that the component gets in addition, by name.
    inputs: dict[str, Any] = field(default_factory=dict)
    #: Value of the component's input `func_args`: strings with a pasted parameter, or a pipeline parameter that is a
    #: whole dict; None if there is neither.
    parameter: Any = None


def split_func_args(func_args: Any) -> FuncArgs:
    """Split the `func_args` of `train_task`: a dict with pipeline parameters in it, or a parameter that is a dict."""
    split = FuncArgs()
    if isinstance(func_args, PipelineChannel):
        split.parameter = func_args
        return split
    if not isinstance(func_args or {}, Mapping):
        raise ValueError(f"func_args must be a dict or a pipeline parameter, got {type(func_args).__name__}")
    pasted = {}
    for name, value in (func_args or {}).items():
        if _has_pasted_parameter(value):
            pasted[name] = value
        else:
            split.request[name] = _replace_channels(value, ["func_args", str(name)], split.inputs)
    split.parameter = pasted or None
    return split


def get_input_type(value: Any) -> str:
    """Return the type of an input that takes a pipeline parameter, an output, an item of a loop, or a text."""
    kind = str(getattr(value, "channel_type", "String")).removeprefix("typing.").partition("[")[0]
    # KFP makes a text of anything that a String input gets; the function's declared types undo that.
    return _TYPES.get(kind.lower(), "String")


def _has_pasted_parameter(value: Any) -> bool:
    return any(isinstance(leaf, str) and _PASTED.search(leaf) for leaf in validation.iterate_leaves(value))


def _replace_channels(value: Any, path: list[str], inputs: dict[str, Any]) -> Any:
    if isinstance(value, PipelineChannel) or (isinstance(value, str) and _PLACEHOLDER.search(value)):
        name = _choose_name(path, inputs)
        inputs[name] = value
        return {INPUT_REFERENCE: name}
    if isinstance(value, Mapping):
        return {key: _replace_channels(item, [*path, str(key)], inputs) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_channels(item, [*path, str(at)], inputs) for at, item in enumerate(value)]
    return value


def _choose_name(path: list[str], inputs: Mapping[str, Any]) -> str:
    name = re.sub(r"\W+", "_", "_".join(path)).lower()
    return name if name not in inputs else _choose_name([*path, str(len(inputs))], inputs)
