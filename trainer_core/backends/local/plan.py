"""Renders the plan of a local job, complete but for the rendezvous port, which must be free at that moment. Pure."""

from __future__ import annotations

from typing import Any

from trainer_core.backends import initializer_sources
from trainer_core.backends.local.job_store import JobFolder, StateFolder
from trainer_core.backends.local.runtimes import LocalRuntime
from trainer_core.backends.supervisor_process import build_module_command
from trainer_core.base import resources
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.base.resources import check_process_count
from trainer_core.base.validation import check_reserved_env
from trainer_core.fetch.settings import ENV_PREFIX
from trainer_core.k8s.runtimes import RESERVED_ENV
from trainer_core.lifecycle.restart_policy import get_attempt_restarts
from trainer_core.model import checkpoint_location
from trainer_core.model.request import InitializerSource, TrainerRequest, TrainJobRequest
from trainer_core.node import env

#: Path of the program of every node process, relative to the code folder of the job.
BOOTSTRAP = "trainer_core/node/bootstrap.py"
#: Placeholder; the supervisor replaces it by the interpreter of the job's environment.
_PYTHON = "python"


def render_plan(
    request: TrainJobRequest, runtime: LocalRuntime, state: StateFolder, checkpoints_uri: str | None = None
) -> dict[str, Any]:
    _check_request(request)
    restarts = get_attempt_restarts(request)
    folder = state.job_folder(request.require_name())
    place = checkpoint_location.resolve_uri(request, checkpoints_uri or state.checkpoints.as_uri())
    checkpoint_env = checkpoint_location.build_variables(request, place)
    steps = [_render_initializer(role, source, folder, state) for role, source in request.initializer_sources()]
    if request.work.trainer:
        runtime_env = {**runtime.env, **request.job_env}
        own_env = {**checkpoint_env, **request.stalled_env}
        steps += _render_nodes(request.work.trainer, runtime_env, own_env, runtime, folder)
    return {
        "version": 1,
        "runtime": runtime.name if request.work.trainer else None,
        "steps": steps,
        "environment": _render_environment(request.work.trainer),
        "active_deadline_seconds": request.attempt_deadline_seconds,
        "start_within": request.policy.start_within,
        "suspend": request.policy.suspend,
        "grace_seconds": request.policy.checkpoints.grace if request.policy.checkpoints else None,
        **({"restarts": restarts.to_dict()} if restarts else {}),
        # By which unused files are found.
        **({"code": request.project.uri} if request.project and request.project.uri else {}),
    }


def _check_request(request: TrainJobRequest) -> None:
    trainer = request.work.trainer
    if trainer is None and not request.initializer_sources():
        raise InvalidRequestError("the request has nothing to run; set a trainer, an initializer or both")
    if trainer is not None and trainer.kind == "container":
        raise UnsupportedError(
            "CustomTrainerContainer runs an image, which the local backend cannot do; use a CustomTrainer with a "
            "function, or the container or kubernetes backend"
        )
    if trainer is not None and trainer.kind == "builtin":
        raise UnsupportedError("BuiltinTrainer needs the image of its recipe; use the kubernetes backend")
    request.check_options("local")
    if trainer is not None:
        check_reserved_env("trainer.env", trainer.env, RESERVED_ENV["torch"].__contains__, "torchrun")


def _render_initializer(role: str, source: InitializerSource, folder: JobFolder, state: StateFolder) -> dict[str, Any]:
    initializer_sources.check_source_supported(role, source)
    name = f"{role}-initializer"
    variables = initializer_sources.get_fetch_variables(role, source)
    variables.update(CACHE=str(state.cache / role), TARGET=str(folder.workspace / role), PRIVATE="1")
    step_env = {ENV_PREFIX + key: value for key, value in variables.items()}
    step_env[env.TERMINATION_LOG] = str(folder.termination_path(name))
    command = build_module_command(_PYTHON, "trainer_core.fetch")
    return {"name": name, "kind": "initializer", "command": command, "env": step_env}


def _render_nodes(
    trainer: TrainerRequest,
    runtime_env: dict[str, str],
    own_env: dict[str, str],
    runtime: LocalRuntime,
    folder: JobFolder,
) -> list[dict[str, Any]]:
    num_nodes = trainer.num_nodes or runtime.num_nodes
    if not runtime.is_torch and (trainer.num_proc_per_node or 1) > 1:
        raise UnsupportedError(
            f"runtime {runtime.name!r} starts one process on each node, not num_proc_per_node="
            f"{trainer.num_proc_per_node}; use torch-distributed, or more nodes"
        )
    num_processes = trainer.num_proc_per_node or _default_num_processes(trainer)
    check_process_count(num_nodes, num_processes)
    nodes = [
        _render_node(rank, num_nodes, num_processes, trainer, runtime.is_torch, runtime_env, folder)
        for rank in range(num_nodes)
    ]
    return [{**node, "env": {**node["env"], **own_env}} for node in nodes]


def _render_node(
    rank: int,
    num_nodes: int,
    num_processes: int,
    trainer: TrainerRequest,
    is_torch: bool,
    runtime_env: dict[str, str],
    folder: JobFolder,
) -> dict[str, Any]:
    name = f"node-{rank}"
    step_env = {
        **runtime_env,
        **trainer.literal_env,
        env.PAYLOAD: str(folder.payload),
        env.TERMINATION_LOG: str(folder.termination_path(name)),
        env.DATASET_PATH: str(folder.workspace / "dataset"),
        env.MODEL_PATH: str(folder.workspace / "model"),
        env.OUTPUT_PATH: str(folder.workspace / "output"),
    }
    if trainer.result_uri:
        step_env[env.RESULT_URI] = trainer.result_uri
    bootstrap = str(folder.code / BOOTSTRAP)
    if not is_torch:
        step_env.update(RANK=str(rank), WORLD_SIZE=str(num_nodes))
        return {"name": name, "kind": "node", "command": [_PYTHON, bootstrap], "env": step_env}
    step_env.update(PET_NNODES=str(num_nodes), PET_NPROC_PER_NODE=str(num_processes), PET_NODE_RANK=str(rank))
    step_env.update(PET_MASTER_ADDR="127.0.0.1")
    step_env.setdefault("OMP_NUM_THREADS", "1")
    command = [_PYTHON, bootstrap, env.TORCHRUN]
    return {"name": name, "kind": "node", "command": command, "env": step_env}


def _default_num_processes(trainer: TrainerRequest) -> int:
    """One torch process for each device, else for each whole CPU, at least one: as Trainer does for ``auto``."""
    device = resources.detect_device(trainer.resources_per_node or {})
    return max(1, int(resources.parse_quantity(device[1]))) if device else 1


def _render_environment(trainer: TrainerRequest | None) -> dict[str, Any] | None:
    if trainer is None or not trainer.packages:
        return None
    return {"packages": sorted(set(trainer.packages)), "index_urls": list(trainer.pip_index_urls)}
