"""The component that returns the version of a dataset or model at a URI."""

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["look"]


@component
def look(
    version: dsl.OutputPath(str),
) -> dsl.ContainerSpec:
    """Return the version of a dataset or model without fetching it, for the input `version` of `initialize_*`.

    `kfp_components.tasks.initialize_task` adds both tasks. Secrets go into the environment of this task, by
    `kubernetes.use_secret_as_env`.

    Args:
        storage_uri: Source: hf://owner/name, s3://bucket/prefix, file:///absolute/path.
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. Filled in, except where the component is loaded from
            YAML. KFP never takes a task with it from the cache of another run.
        role: "dataset" or "model".
        ignore_patterns: Glob patterns of files that do not count.
        env: Further settings, by the environment variables of Trainer's initializers.

    Returns:
        version: Changes when the commit, or the name, size or etag of a file changes.

    Example:
        looked = look(storage_uri=uri)
        fetched = initialize_dataset(storage_uri=uri, version=looked.outputs["version"])
    """
    return build_container_spec("look")
