"""The component that says whether a model is good enough."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, Optional

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["evaluate_gate"]


@dsl.container_component
def evaluate_gate(
    metrics: dsl.Input[dsl.Metrics],
    passed: dsl.OutputPath(bool),
    verdict: dsl.OutputPath(str),
    at_least: Optional[Dict] = None,
    at_most: Optional[Dict] = None,
) -> dsl.ContainerSpec:
    """Compare metrics with bounds, to go on with `dsl.If(gate.outputs["passed"] == True)`.

    A missed bound does not fail the task; a metric that was not reported does.

    Args:
        metrics: From `train` or `wait`.
        at_least: Lower bounds by metric, such as {"accuracy": 0.95}.
        at_most: Upper bounds by metric, such as {"loss": 0.1}.

    Returns:
        passed: Whether every bound is kept.
        verdict: Which are not, and by what.
    """
    return container_spec("evaluate_gate")
