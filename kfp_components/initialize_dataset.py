"""The component that fetches a dataset, and the pattern that `initialize_model` shares with it."""

import inspect
from typing import Any, Dict

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["initialize_dataset", "make_initialize_component"]


def _initialize(
    job: dsl.OutputPath(Dict),
    status: dsl.OutputPath(str),
    result: dsl.OutputPath(Dict),
    uri: dsl.OutputPath(str),
    fetched: dsl.Output[dsl.Artifact],
) -> dsl.ContainerSpec:
    """Fetch a ROLE once, for any number of trainings.

    KFP may take this task from its cache. `initialize_task` sets `version` so that it does while the source is the
    same.

    Args:
        storage_uri: Source: hf://owner/name, s3://bucket/prefix, file:///absolute/path.
        ignore_patterns: Glob patterns of files to leave out.
        version: Version of the source, such as a commit. KFP reuses a fetched ROLE while it and the other inputs stay
            the same.
        env: Further settings, by the environment variables of Trainer's initializers.
        secret: Name of a Secret with the keys of an S3-compatible store in its entries `accesskey` and `secretkey`.
        secrets: Secret settings by environment variable, as {"name": secret, "key": key}.
        workspace: On a cluster, the volume claim to fetch into, as {"claim": name}; with "size", "storage_class" and
            "access_mode" for a claim that does not exist yet. None for a new claim with the name of the job.
        backend: Name of the backend.
        backend_config: Settings of the backend, such as {"namespace": "team-a"}.
        job_name: Name of the TrainJob; None for a name that belongs to this task and run.
        timeout: Seconds to wait at most; 0 for no limit. The job continues.
        on_kill: What this task does to the job when its run is terminated: "cancel" or "keep". With "keep" the job
            also outlives the run.

    Returns:
        job: Ref of the TrainJob that fetched it.
        status: Complete.
        result: Where it is, as {"ROLE": uri}.
        uri: Where it is, such as pvc://claim/ROLE: the input ROLE_INPUT_uri of `train`.
        ROLE: The fetched ROLE: the input ROLE_INPUT of `train`.

    Example:
        fetched = initialize_ROLE(storage_uri="hf://owner/name", backend="kubernetes", workspace={"claim": "shared"})
        train_task(trainer=trainer, backend="kubernetes", ROLE_INPUT=fetched.outputs["ROLE"], wait=True)
    """
    raise NotImplementedError


def make_initialize_component(role: str, train_input: str, artifact: Any) -> Any:
    """Return the component that fetches the dataset or the model for an input of `train`."""
    name = f"initialize_{role}"

    def initialize(*_: Any) -> dsl.ContainerSpec:
        return build_container_spec(name)

    signature = inspect.signature(_initialize)
    parameters = [
        each.replace(name=role, annotation=dsl.Output[artifact]) if each.name == "fetched" else each
        for each in signature.parameters.values()
    ]
    initialize.__name__ = name
    initialize.__doc__ = (inspect.getdoc(_initialize) or "").replace("ROLE_INPUT", train_input).replace("ROLE", role)
    initialize.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # KFP reads it
    return component(initialize)


initialize_dataset = make_initialize_component("dataset", "dataset", dsl.Dataset)
