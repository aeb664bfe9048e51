"""The component that fetches a dataset."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, List, Optional

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["initialize_dataset"]


@dsl.container_component
def initialize_dataset(
    storage_uri: str,
    job: dsl.OutputPath(Dict),
    status: dsl.OutputPath(str),
    result: dsl.OutputPath(Dict),
    uri: dsl.OutputPath(str),
    dataset: dsl.Output[dsl.Dataset],
    ignore_patterns: Optional[List[str]] = None,
    version: Optional[str] = None,
    env: Optional[Dict] = None,
    secrets: Optional[Dict] = None,
    workspace: Optional[Dict] = None,
    backend: str = "local",
    backend_config: Optional[Dict] = None,
    job_name: Optional[str] = None,
    timeout: int = 0,
    on_kill: str = "cancel",
) -> dsl.ContainerSpec:
    """Fetch a dataset once, for any number of trainings.

    Args:
        storage_uri: Where from: hf://owner/name, s3://bucket/prefix, file:///absolute/path.
        ignore_patterns: Glob patterns of files to leave out.
        version: What stands behind the URI now, such as a revision: while it and the other inputs stay the same, KFP
            may reuse what was fetched.
        env: Further settings, by the environment variables of Trainer's initializers.
        secrets: Secret settings by environment variable, as {"name": secret, "key": key}.
        workspace: On a cluster the volume claim to fetch into, as {"claim": name}; with "size", "storage_class" and
            "access_mode" for one that is to be made. None for a new one by the job's name.
        backend: Where to run.
        backend_config: Settings of the backend, such as {"namespace": "team-a"}.
        job_name: Name of the TrainJob; None for one that belongs to this run.
        timeout: Seconds to wait at most; 0 for as long as it takes. The job goes on.
        on_kill: What becomes of the job when this task is terminated: "cancel" or "keep".

    Returns:
        job: Ref of the TrainJob that fetched it.
        status: Complete.
        result: Where the backend keeps it, as {"dataset": uri}.
        uri: The same: pass it to `train` where KFP need not copy the data, such as pvc://claim/dataset.
        dataset: What was fetched.
    """
    return container_spec("initialize_dataset")
