"""The component that promotes a model."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Optional

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
    version: dsl.OutputPath(str),
    higher_is_better: bool = True,
    model_name: Optional[str] = None,
    alias: str = "champion",
    min_delta: float = 0.0,
) -> dsl.ContainerSpec:
    """Register a model in a folder or an MLflow server, and move the alias to it if it is better than the champion.

    A retry promotes the model of a job once. Credentials of an MLflow server are read from the environment of the step
    (`MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`).

    Args:
        model: Model of `train` or `wait`.
        metric: Its metric.
        registry: Absolute path or file:// URI of a folder, on a volume that is mounted on this task; or http(s):// of
            an MLflow server.
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. It differs in each run, so that KFP never takes this
            task from its cache.
        higher_is_better: Whether a higher metric is better.
        model_name: Name of the model in the registry. By default the folder itself; an MLflow server needs a name.
        alias: Alias that names the best model.
        min_delta: By how much the metric must be better.

    Returns:
        promoted: Whether the alias was moved to it.
        uri: The model that has the alias: file://, or models:/ of MLflow.
        version: Its version in the registry.

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
