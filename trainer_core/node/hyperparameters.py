"""The parameters that a search has chosen for this training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from . import env

_PREFIX = "KUBEFLOW_TRAINER_OPT_"


def get_hyperparameters() -> dict[str, Any]:
    """Return the parameters that a search has chosen for this training, by name; empty outside of a search.

    A training function gets them as arguments as well. Below an OptimizationJob of Kubeflow Trainer the names are in
    lower case, and a value that is a number is returned as one.

    Returns:
        Numbers, text and other JSON data by name.

    Example:
        ```python
        from trainer_core import get_hyperparameters

        rate = get_hyperparameters().get("lr", 0.01)
        ```
    """
    text = os.environ.get(env.HYPERPARAMETERS)
    if text:
        return dict(json.loads(text))
    return {name[len(_PREFIX) :].lower(): _parse(text) for name, text in _list_variables().items()}


def override_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a function with the values of an OptimizationJob, which sets variables only."""
    # A search of this project has put its values into the arguments.
    variables = {} if os.environ.get(env.HYPERPARAMETERS) else _list_variables()
    return {name: _convert(variables.get(_PREFIX + name.upper()), value) for name, value in args.items()}


def _list_variables() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.startswith(_PREFIX)}


def _parse(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _convert(text: str | None, default: Any) -> Any:
    """Return a text as the type of an argument."""
    if text is None or isinstance(default, str):
        return default if text is None else text
    value = _parse(text)
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    return type(default)(value) if is_number and not isinstance(value, str) else value
