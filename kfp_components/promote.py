"""The component that promotes a model."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["promote"]


@component
def promote(
    model: dsl.Input[dsl.Model],
    metric: float,
    registry: str,
    run_id: str,
    promoted: dsl.OutputPath(bool),
    uri: dsl.OutputPath(str),
    higher_is_better: bool = True,
) -> dsl.ContainerSpec:
    """Copy a model to a registry folder, atomically, if it is better than the model that was promoted last.

    A retry promotes the model of a job once.

    Args:
        model: Model of `train` or `wait`.
        metric: Its metric.
        registry: Absolute path or file:// URI of a folder, on a volume that is mounted on this task.
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. It differs in each run, so that KFP never takes this
            task from its cache.
        higher_is_better: Whether a higher metric is better.

    Returns:
        promoted: Whether it is the current model now.
        uri: The current model.

    Example:
        promoted = promote(
            model=waited.outputs["model"],
            metric=waited.outputs["accuracy"],
            registry="/models",
            run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        )
        kubernetes.mount_pvc(promoted, pvc_name="models", mount_path="/models")
    """
    return build_container_spec("promote")
