"""What the components train and submit do: submit a TrainJob, and for train follow its attempts to their end."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any

from kfp_components.step import outputs
from kfp_components.step.client import IN_CONTAINER, create_client
from kfp_components.step.executor_input import Artifact, Task
from kfp_components.step.initializer_source import LOCAL_BACKENDS, set_initializer_source
from kfp_components.step.owner_reference import Run, find_run
from kfp_components.step.pod import extract_claims, find_step_pod
from kfp_components.step.request import (
    add_run_labels,
    build_request,
    load_request,
    set_output_path,
    set_tracking,
    set_trainer_fields,
)
from kfp_components.step.sigterm import submit_job
from kfp_components.step.task_config import apply_task_config, list_claim_mounts
from kfp_components.step.wait import WaitInputs, follow_attempts
from trainer_core.base.errors import InvalidRequestError, TrainerError
from trainer_core.client import TrainerClient
from trainer_core.model.request import TrainJobRequest


@dataclass(frozen=True, kw_only=True)
class JobInputs:
    """The inputs that train, submit and search share.

    Args:
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. Filled in, except where the component is loaded from
            YAML. KFP never takes a task with it from the cache of another run. `delete` and `trainjob reap` find the
            jobs of a run by it.
        task_name: Name of the task: dsl.PIPELINE_TASK_NAME_PLACEHOLDER. Filled in likewise. KFP never takes a task with
            it from the cache of another task of the run.
        request: The TrainJob: a definition as for `trainjob submit`, such as {"runtime": "torch-distributed",
            "trainer": {"image": "registry/name:1.0", "num_nodes": 2}}, or what
            `trainer_core.definition.request_builder.build_request_data` returns.
        request_file: The same as a file in JSON or YAML.
        func_args: Arguments of the training function, over those in the request; they get the types that the function
            declares. From Python, `train_task` also takes pipeline parameters inside the dict.
        command: Command of a trainer with an image, instead of the one in the request.
        args: Arguments of a trainer with an image, instead of those in the request.
        num_nodes: Number of nodes; 0 for the number in the request.
        num_proc_per_node: Processes on each node; 0 for the number in the request.
        dataset: Dataset of the job: what the training function finds in `dataset_path()`. A job on a cluster reads it
            from the URI in the artifact's metadata, else from KFP's object store.
        pretrained: Model of the job: what the training function finds in `model_path()`, read in the same way.
        dataset_uri: The dataset by URI, or by its path in a mounted volume claim: KFP downloads nothing into this task.
        pretrained_uri: The model by URI, in the same way.
        output_path: On a cluster, the folder of `output_path()` of the training function: in a volume claim that this
            task mounts, such as dsl.WORKSPACE_PATH_PLACEHOLDER. Each job has its own folder in it. None for a folder in
            the pod, which is lost with it.
        backend: Name of the backend. The processes of "local" run in this task's own container.
        backend_config: Settings of the backend, such as {"namespace": "team-a"}.
        job_name: Name of the TrainJob; None for a name that belongs to this task and run. A job with a given name
            belongs to no run: every task that submits the same request under this name gets the same job.
    """

    run_id: str
    task_name: str  # Read by KFP's cache alone.
    request: dict[str, Any] | None = None
    request_file: Annotated[Artifact | None, "Artifact"] = None
    func_args: dict[str, Any] | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    num_nodes: int = 0
    num_proc_per_node: int = 0
    dataset: Annotated[Artifact | None, "Dataset"] = None
    pretrained: Annotated[Artifact | None, "Model"] = None
    dataset_uri: str | None = None
    pretrained_uri: str | None = None
    output_path: str | None = None
    backend: str = "local"
    backend_config: dict[str, Any] | None = None
    job_name: str | None = None
    task_config: dict[str, Any] | None = None


def train(task: Task, *, jobs: JobInputs, waiting: WaitInputs) -> None:
    """Submit a TrainJob and follow it to its end."""
    client = create_client(jobs.backend, jobs.backend_config)
    request, run = build_task_request(task, client, jobs, waiting.on_kill)
    follow_attempts(task, client, submit_job(client, request, waiting.on_kill, run), request, run, waiting)


def submit(task: Task, *, jobs: JobInputs) -> None:
    """Submit a TrainJob."""
    if jobs.backend in LOCAL_BACKENDS and os.environ.get(IN_CONTAINER):
        raise InvalidRequestError(
            f"the processes of the {jobs.backend} backend end with the container of this task; use the component "
            "train, as train_task(wait=True) does, or another backend"
        )
    client = create_client(jobs.backend, jobs.backend_config)
    request, run = build_task_request(task, client, jobs, None)
    with submit_job(client, request, "keep", run) as ref:
        outputs.write_ref(task, ref)
        outputs.write_submission(task, client, ref)


def build_task_request(
    task: Task, client: TrainerClient, inputs: JobInputs, on_kill: str | None
) -> tuple[TrainJobRequest, Run]:
    data = load_request(client, inputs.request, inputs.request_file)
    set_trainer_fields(
        data,
        inputs.func_args or {},
        command=inputs.command,
        args=inputs.args,
        num_nodes=inputs.num_nodes,
        num_proc_per_node=inputs.num_proc_per_node,
    )
    task_config = _add_claims(client, inputs)
    mounts = list_claim_mounts(task_config)
    set_initializer_source(data, "dataset", inputs.dataset, inputs.dataset_uri, inputs.backend, mounts)
    set_initializer_source(data, "model", inputs.pretrained, inputs.pretrained_uri, inputs.backend, mounts)
    apply_task_config(data, task_config, inputs.backend)
    report, name = task.get_artifact("report"), inputs.job_name or data.get("name")
    if inputs.output_path and inputs.backend not in LOCAL_BACKENDS:
        # Processes of this machine write where this step reads anyway.
        set_output_path(data, inputs.output_path, name or report.uri, mounts)
    # A job with a given name may serve several runs.
    run = find_run(client, inputs.run_id)
    if name:
        run = replace(run, id=None)
    add_run_labels(data, run.id, on_kill)
    set_tracking(data, inputs.run_id)
    return build_request(data, inputs.job_name, report.uri, slug=_get_slug(data)), run


def _add_claims(client: TrainerClient, inputs: JobInputs) -> dict[str, Any] | None:
    """Return the TaskConfig, with the claims of this step's pod where inputs are paths and KFP passes no volumes.

    KFP passes none where the component was loaded from YAML.
    """
    paths = [each for each in (inputs.output_path, inputs.dataset_uri, inputs.pretrained_uri) if each]
    if inputs.backend in LOCAL_BACKENDS or not any(each.startswith(("/", "file://")) for each in paths):
        return inputs.task_config
    if list_claim_mounts(inputs.task_config):
        return inputs.task_config
    try:
        claims = extract_claims(find_step_pod(client))
    except TrainerError as error:
        print(f"the volume claims of this step are not known: {error}", file=sys.stderr)
        return inputs.task_config
    return {**(inputs.task_config or {}), **claims}


def _get_slug(data: dict[str, Any]) -> str:
    code = (data.get("trainer") or {}).get("code") or {}
    return str(code.get("entry") or "train").rpartition(":")[2]
