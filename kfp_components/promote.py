"""The component that promotes a model."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["promote"]


@dsl.container_component
def promote(
    model: dsl.Input[dsl.Model],
    metric: float,
    registry: str,
    promoted: dsl.OutputPath(bool),
    uri: dsl.OutputPath(str),
    higher_is_better: bool = True,
) -> dsl.ContainerSpec:
    """Copy a model to a registry folder, atomically, if it beats the one that was promoted last.

    Can be retried: the model of a job is promoted once. Switch caching off.

    Args:
        model: The model, from `wait`.
        metric: How good it is.
        registry: Absolute path or file:// URI of a folder, such as one on a mounted volume.
        higher_is_better: Whether a higher metric is the better one.

    Returns:
        promoted: Whether it is the current model now.
        uri: The current model.
    """
    return container_spec("promote")
