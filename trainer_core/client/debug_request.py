"""The request by which a TrainJob is debugged on this machine, and what of the TrainJob it cannot carry. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from trainer_core.model.jobs import Outcome, TrainJob
from trainer_core.model.request import (
    Checkpoints,
    Context,
    InitializerRequest,
    InitializerSource,
    Policy,
    RuntimeRef,
    TrainerRequest,
    TrainJobRequest,
    Work,
)

#: Resources that every machine has.
_COMMON = ("cpu", "memory", "ephemeral-storage")
#: What keeps a training from adding to the runs of other trainings, by the folder of the session.
_TRACKING = {
    "MLFLOW_TRACKING_URI": "{uri}/mlruns",
    "WANDB_MODE": "offline",
    "WANDB_DIR": "{path}",
    # Of comet_ml.start, and of transformers; comet_ml.Experiment has no such variable.
    "COMET_START_ONLINE": "0",
    "COMET_OFFLINE_DIRECTORY": "{path}",
}


def build_request(
    original: TrainJobRequest,
    trainer: TrainerRequest,
    job: TrainJob,
    *,
    folder: Path,
    given_env: Collection[str] = (),
    dataset: str | None = None,
    fetchable: Collection[str] = (),
    nodes: int | None = None,
) -> TrainJobRequest:
    """Return a request for the function of a TrainJob, all of whose files are in the folder of a session."""
    env = {**trainer.env, **{name: value.format(uri=folder.as_uri(), path=folder) for name, value in _TRACKING.items()}}
    sources = {role: source for role, source in original.initializer_sources() if _get_scheme(source) in fetchable}
    if dataset is not None:
        sources["dataset"] = InitializerSource(storage_uri=dataset, link=True)
    checkpoints = original.policy.checkpoints
    is_torch = job.runtime.trainer.framework == "torch"
    work = Work(
        runtime=RuntimeRef(name="torch-distributed" if is_torch else "python"),
        trainer=TrainerRequest(
            kind="custom",
            code=trainer.code,
            env={name: value for name, value in env.items() if name not in given_env},
            packages=trainer.packages if nodes else (),
            pip_index_urls=trainer.pip_index_urls if nodes else (),
            num_nodes=nodes,
        ),
        initializer=InitializerRequest(**sources) if sources else None,
    )
    return TrainJobRequest(
        work=work,
        policy=Policy(checkpoints=checkpoints and _move_checkpoints(checkpoints, folder, job.name)),
        context=Context(name=job.name, partition=original.context.partition),
    )


def _move_checkpoints(checkpoints: Checkpoints, folder: Path, name: str) -> Checkpoints:
    place = {"uri": (folder / "checkpoints").as_uri(), "scope": f"{name}/g-0"}
    return checkpoints.model_copy(update={**place, "load": "fresh", "nonce": None})


def get_checkpoint_folder(folder: Path, name: str) -> Path:
    """Return where the session finds the checkpoints of its function."""
    return folder / "checkpoints" / name / "g-0"


def list_left_out(
    original: TrainJobRequest,
    trainer: TrainerRequest,
    job: TrainJob,
    outcome: Outcome | None,
    *,
    fetchable: Collection[str],
    step: int | None = None,
    dataset: str | None = None,
    nodes: int | None = None,
    runs_image: bool = True,
) -> list[str]:
    """Return what the session lacks of the TrainJob, one line for each."""
    return [
        *_list_machines(original, trainer, job, nodes, runs_image),
        *_list_data(original, fetchable, dataset),
        *(["result_uri: the result is not written to it"] if trainer.result_uri else []),
        *_list_states(original, outcome, step),
    ]


def _list_machines(
    original: TrainJobRequest, trainer: TrainerRequest, job: TrainJob, nodes: int | None, runs_image: bool
) -> Iterator[str]:
    processes = trainer.num_proc_per_node or 1
    if job.num_nodes > (nodes or 1) or processes > 1:
        here = f"{nodes} nodes of one process" if nodes else "one process, rank 0, with WORLD_SIZE=1"
        advice = "" if nodes else f"; --on local --nodes {job.num_nodes * processes} starts all ranks"
        yield f"world size: {job.num_nodes} nodes, {processes} processes each; here {here}{advice}"
    limits = original.work.distributed.limits if original.work.distributed else {}
    devices: Mapping[str, object] = {**(trainer.resources_per_node or {}), **limits}
    for name, amount in devices.items():
        if name not in _COMMON:
            yield f"{name}: {amount} on each node; here what this machine has"
    if runs_image:
        what = f"image {trainer.image}" if trainer.image else f"runtime {job.runtime.name!r}"
        yield f"{what}: Python packages, environment and system libraries of its image"
    if trainer.code is not None and trainer.code.kind == "reference" and trainer.code.project is None:
        yield f"{trainer.code.text}: imported from what is installed here"
    pods = {
        "RuntimePatch": original.work.patches,
        "DistributedConfig": original.work.distributed,
        **{extension.option: extension for extension in original.work.extensions.values()},
    }
    for name, value in pods.items():
        if value:
            yield f"{name}: what it changes in pods"


def _list_data(original: TrainJobRequest, fetchable: Collection[str], dataset: str | None) -> Iterator[str]:
    for role, source in original.initializer_sources():
        if role == "dataset" and dataset is not None:
            yield f"dataset {source.storage_uri}: replaced by {dataset}"
        elif _get_scheme(source) not in fetchable:
            advice = "; give --dataset PATH" if role == "dataset" else ""
            yield f"{role} {source.storage_uri}: only nodes of the cluster reach it{advice}"


def _list_states(original: TrainJobRequest, outcome: Outcome | None, step: int | None) -> Iterator[str]:
    if step is not None:
        yield f"random state: what was drawn before step {step}, unless the checkpoint has it"
    elif outcome is not None and outcome.resumed_from is not None:
        yield f"checkpoint: it resumed from step {outcome.resumed_from}; --from-checkpoint starts from the newest one"
    elif original.policy.checkpoints is not None and original.policy.checkpoints.load not in ("fresh", "never"):
        yield f"load={original.policy.checkpoints.load}: starts from the beginning"
    if original.policy.tracking is not None:
        yield "tracking: MLflow and Weights & Biases write into a temporary folder"


def _get_scheme(source: InitializerSource) -> str:
    return source.storage_uri.partition("://")[0]
