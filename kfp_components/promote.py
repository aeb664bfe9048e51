"""The component that promotes a model."""

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["promote"]


@component
def promote(
    promoted: dsl.OutputPath(bool),
    uri: dsl.OutputPath(str),
    version: dsl.OutputPath(str),
) -> dsl.ContainerSpec:
    """Register a model in a folder or an MLflow server, and move the alias to it if it is better than the champion.

    A retry promotes the model of a job once. Credentials of an MLflow server are read from the environment of the step
    (`MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`).

    Args:
        model: Model of `train` or `wait`.
        metric: Value of its metric.
        registry: Absolute path or file:// URI of a folder, on a volume that is mounted on this task; or http(s):// of
            an MLflow server.
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. Filled in, except where the component is loaded from
            YAML. KFP never takes a task with it from the cache of another run.
        higher_is_better: Whether a higher metric is better. The input of earlier releases; `mode` is the same.
        model_name: Name of the model in the registry. By default the folder itself; an MLflow server needs a name.
        alias: Alias that names the best model.
        min_delta: By how much the metric must be better.
        mode: max or min, whether the largest or the smallest metric is best. By default that of higher_is_better.
        metric_name: Name of the metric. A model is not compared with a champion of another metric. By default any.
        replace_metric: Whether to promote the model although the alias compares another metric or mode, and to compare
            this one from now on.
        partition: Key of a partition, such as a region or a day. Each partition has a separate alias, such as
            champion-emea, and its models are compared with that alias only. By default none.

    Returns:
        promoted: Whether the alias was moved to it.
        uri: The model that has the alias: file://, or models:/ of MLflow.
        version: Its version in the registry.

    Example:
        promoted = promote(
            model=waited.outputs["model"],
            metric=waited.outputs["accuracy"],
            registry="/models",
        )
        kubernetes.mount_pvc(promoted, pvc_name="models", mount_path="/models")
    """
    return build_container_spec("promote")
