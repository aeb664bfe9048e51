"""What the evaluate_gate component does: compare metrics with bounds."""

from __future__ import annotations

import math
from typing import Annotated, Any

from kfp_components.step.executor_input import Artifact, Task
from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import redact

#: What KFP writes beside the metrics.
_KFP_FACTS = frozenset({"display_name", "store_session_info"})


def evaluate_gate(
    task: Task,
    *,
    metrics: Annotated[Artifact, "Metrics"],
    at_least: dict[str, Any] | None = None,
    at_most: dict[str, Any] | None = None,
) -> None:
    """Compare metrics with bounds; the component's docstring describes the inputs."""
    if not at_least and not at_most:
        raise InvalidRequestError(
            'give at_least or at_most, such as {"accuracy": 0.95}: a gate without a bound is none'
        )
    missed = []
    for word, sign, bounds in (("at least", 1, at_least), ("at most", -1, at_most)):
        for name, bound in (bounds or {}).items():
            if name not in metrics.metadata:
                known = ", ".join(sorted(metrics.metadata.keys() - _KFP_FACTS)) or "none"
                raise InvalidRequestError(f"the job reported no metric {redact(name)}; it reported {known}")
            value = _parse_number(f"metric {redact(name)}", metrics.metadata[name])
            if not math.isfinite(value):
                raise InvalidRequestError(f"metric {redact(name)} is not a finite number but {value}")
            limit = _parse_number(f"bound {redact(name)}", bound)
            good = sign * value >= sign * limit
            print(f"{name} is {value:g}, must be {word} {limit:g}: {'passed' if good else 'missed'}")
            missed += [] if good else [f"{name} is {value:g}, not {word} {limit:g}"]
    task.write("passed", not missed)
    task.write("verdict", "; ".join(missed) or "passed")


def _parse_number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InvalidRequestError(f"{what} is no number but {redact(value)}; see that the training function returns it")
    try:
        return float(value)
    except ValueError:
        raise InvalidRequestError(f"{what} is no number but {redact(value)}") from None
