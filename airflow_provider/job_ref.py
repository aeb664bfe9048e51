"""Parses the `job` argument of operators and sensors: a TrainJob ref, a template that renders to one, or a name."""

from __future__ import annotations

import ast
import json
from typing import Any

from trainer_core import validation
from trainer_core.jobs import TrainJobRef
from trainer_core.secrets import redact


def to_template_value(value: Any) -> Any:
    """Return a value that Airflow can render: a ref as a dict, because Airflow does not render unknown objects."""
    # Airflow walks through every value of a template field.
    validation.check_size("job", value)
    return value.to_dict() if isinstance(value, TrainJobRef) else value


def parse_job(value: Any) -> str | TrainJobRef:
    """Return the name or the ref in a rendered `job` argument."""
    data = parse_ref_data(value) if not isinstance(value, str) or value.lstrip().startswith("{") else value
    return data if isinstance(data, str) and data.strip() else TrainJobRef.from_dict(data)


def parse_ref_data(value: Any) -> Any:
    """Return a rendered ref as a dict. Templates render to strings: JSON, or the repr of a dict."""
    if isinstance(value, TrainJobRef):
        return value.to_dict()
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value.strip())
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"{redact(value)} is not a TrainJob ref: expected a dict with backend, namespace, name and uid"
        ) from error
