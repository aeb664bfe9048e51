"""A TrainJob as a DAG gives it: a ref, a template of one, or a name."""

from __future__ import annotations

import ast
import json
from typing import Any

from trainer_core.ref import TrainJobRef

__all__ = ["job", "plain", "templated"]


def templated(value: Any) -> Any:
    """Return a job as a template field can hold it: Airflow leaves objects in one unrendered, without a word."""
    return value.to_dict() if isinstance(value, TrainJobRef) else value


def job(value: Any) -> str | TrainJobRef:
    """Return the name or the ref that was given, once it is rendered.

    Raises:
        ValueError: It is neither.
    """
    found = plain(value) if not isinstance(value, str) or value.lstrip().startswith("{") else value
    return found if isinstance(found, str) and found.strip() else TrainJobRef.from_dict(found)


def plain(value: Any) -> Any:
    """Return the data of a ref: a template renders it as text, JSON or what Python prints for it.

    Raises:
        ValueError: A text that is neither.
    """
    if isinstance(value, TrainJobRef):
        return value.to_dict()
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        pass
    try:
        return ast.literal_eval(value.strip())
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"{value[:60]!r} is no ref") from error
