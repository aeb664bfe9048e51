"""From the inputs of a component to the request of its TrainJob.

Exactly once, over retries: KFP gives a task its output URIs once, the same for each of its retries and others for
every run and loop iteration. So the URI of an output artifact is the job's owner, and a retry finds its job by it.
"""

from __future__ import annotations

import copy
import hashlib
import os
from pathlib import PurePosixPath
from typing import Any

from kfp_components.step.executor_input import Artifact
from kfp_components.step.initializer_source import ClaimMounts
from trainer_core.base.errors import InvalidRequestError
from trainer_core.client import TrainerClient
from trainer_core.model.jobs import KFP_ON_KILL_LABEL, KFP_RUN_LABEL
from trainer_core.model.request import TrainJobRequest
from trainer_core.node.env import OUTPUT_PATH


def load_request(client: TrainerClient, request: dict[str, Any] | None, file: Artifact | None) -> dict[str, Any]:
    """Return the request as plain data, as `trainer_core.definition.request_builder.build_request_data` does."""
    if (request is None) == (file is None):
        raise InvalidRequestError("give either request or request_file: the TrainJob as a dict, or as a file")
    from trainer_core.definition import request_builder  # They load the code that packages functions.
    from trainer_core.frontend import definition_file

    data = copy.deepcopy(request) if file is None else definition_file.read_definition(str(file.require_path()))
    if data is None or "version" in data:
        return request_builder.select_backend(data or {}, client.backend)
    # A random name would be another one at each try.
    built = definition_file.build_definition_request(client, data).to_dict()
    return built if data.get("name") else {key: value for key, value in built.items() if key != "name"}


def build_request(data: dict[str, Any], job_name: str | None, uri: str, slug: str) -> TrainJobRequest:
    """Validate a request that has a name, or else belongs to an output of this task."""
    name = job_name or data.get("name")
    identity = {"name": name} if name else {"owner": {"key": uri, "slug": slug}}
    return TrainJobRequest.parse({**data, **identity})


def add_run_labels(data: dict[str, Any], run_id: str | None, on_kill: str | None) -> None:
    """Label the job with its run, from the moment it exists: `delete` and `trainjob reap` find it by that."""
    if run_id:
        metadata = data.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), KFP_RUN_LABEL: run_id}
        if on_kill:
            labels[KFP_ON_KILL_LABEL] = on_kill
        data["metadata"] = {**metadata, "labels": labels}


def set_tracking(data: dict[str, Any], run_id: str | None) -> None:
    """Track the job below the MLflow run of this step, which KFP's plugin passes as ``MLFLOW_RUN_ID``; else by default.

    The variable is removed from the environment: the training has a separate run.
    """
    parent = os.environ.pop("MLFLOW_RUN_ID", None)
    if parent is None and not os.environ.get("MLFLOW_TRACKING_URI"):
        return
    # What the request sets itself wins.
    tracking = {**(data.get("tracking") or {})}
    tags = {**tracking.get("tags", {})}
    if run_id:
        tags.setdefault("kfp.run_id", run_id)
    if parent:
        tracking.setdefault("parent_run_id", parent)
    data["tracking"] = {**tracking, "tags": tags}


def set_output_path(data: dict[str, Any], output_path: str, owner: str, mounts: ClaimMounts) -> None:
    """Let `output_path()` of the training function be in a volume that the pods of the job mount."""
    if not any(PurePosixPath(output_path).is_relative_to(folder) for folder in mounts):
        raise InvalidRequestError(
            f"output_path: no volume claim is mounted at {output_path} in the pods that train; use "
            "dsl.WORKSPACE_PATH_PLACEHOLDER, or mount a claim on the task of train_task with kubernetes.mount_pvc"
        )
    if not data.get("trainer"):
        raise InvalidRequestError("output_path needs a request with a trainer")
    folder = hashlib.sha256(owner.encode()).hexdigest()[:10]
    env = data["trainer"].get("env") or {}
    data["trainer"]["env"] = {**env, OUTPUT_PATH: f"{output_path.rstrip('/')}/{folder}"}


def set_trainer_fields(data: dict[str, Any], func_args: dict[str, Any], **fields: Any) -> None:
    wanted = {key: value for key, value in fields.items() if value}
    if not func_args and not wanted:
        return
    trainer = data.get("trainer") or {}
    if not trainer:
        names = ", ".join(["func_args", *wanted] if func_args else wanted)
        raise InvalidRequestError(f"{names}: the request has no trainer; add one, with a function or an image")
    if trainer.get("kind") != "container" and wanted.keys() & {"command", "args"}:
        raise InvalidRequestError(
            f"command and args are for an image, and the trainer of the request is {trainer.get('kind')}; use func_args"
        )
    trainer.update(wanted)
    if func_args:
        if not trainer.get("code"):
            raise InvalidRequestError("func_args are for a training function; this request runs an image or a recipe")
        trainer["code"]["args"] = {**(trainer["code"].get("args") or {}), **func_args}
