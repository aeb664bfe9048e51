"""The component that says what stands behind a URI."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, List, Optional

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["look"]


@dsl.container_component
def look(
    storage_uri: str,
    version: dsl.OutputPath(str),
    role: str = "dataset",
    ignore_patterns: Optional[List[str]] = None,
    env: Optional[Dict] = None,
) -> dsl.ContainerSpec:
    """Look at a dataset or model without fetching it, for the input `version` of what fetches it.

    `kfp_components.tasks.initialize_task` puts both together. Switch caching off. A secret goes into the environment of
    this task, by `kubernetes.use_secret_as_env`.

    Args:
        storage_uri: Where it lies: hf://owner/name, s3://bucket/prefix, file:///absolute/path.
        role: "dataset" or "model".
        ignore_patterns: Glob patterns of files that do not count.
        env: Further settings, by the environment variables of Trainer's initializers.

    Returns:
        version: Another one as soon as its commit, or the name, size or etag of a file is another.
    """
    return container_spec("look")
