"""The component that compares metrics with bounds."""

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["evaluate_gate"]


@component
def evaluate_gate(
    passed: dsl.OutputPath(bool),
    verdict: dsl.OutputPath(str),
) -> dsl.ContainerSpec:
    """Compare metrics with bounds, for a condition on the tasks after it.

    A missed bound does not fail the task; a metric that was not reported does.

    Args:
        metrics: Metrics of `train` or `wait`.
        at_least: Lower bounds by metric, such as {"accuracy": 0.95}.
        at_most: Upper bounds by metric, such as {"loss": 0.1}.

    Returns:
        passed: Whether every bound is kept.
        verdict: Which bounds are missed, and by what value.

    Example:
        gate = evaluate_gate(metrics=waited.outputs["metrics"], at_least={"accuracy": 0.95})
        with dsl.If(gate.outputs["passed"] == True):
            publish(model=waited.outputs["model"])
    """
    return build_container_spec("evaluate_gate")
