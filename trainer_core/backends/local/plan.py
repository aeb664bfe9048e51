"""request + runtime → the plan of a local job: which processes, with which arguments and environment. Pure.

The plan is what the supervisor carries out; nothing is decided after it, but the port of the rendezvous, which
must be free at the moment it is used.
"""

from __future__ import annotations

from typing import Any

from trainer_core import resources
from trainer_core.backends import fetching_here
from trainer_core.backends.local.files import Home, JobFolder
from trainer_core.backends.local.runtimes import LocalRuntime
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.fetching.settings import PREFIX
from trainer_core.inside import contract
from trainer_core.request import InitializerSource, TrainerRequest, TrainJobRequest

__all__ = ["BOOTSTRAP", "render"]

#: Where the program of every node process lies in the job's code folder.
BOOTSTRAP = "trainer_core/inside/bootstrap.py"
#: The supervisor puts the interpreter of the job's environment in its place.
_PYTHON = "python"
_RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def render(request: TrainJobRequest, runtime: LocalRuntime, home: Home) -> dict[str, Any]:
    """Return the plan.

    Args:
        request: A named request.
        runtime: Its runtime.
        home: The state folder; the plan holds absolute paths in it.

    Raises:
        UnsupportedError: Local processes cannot do what is asked for.
        InvalidRequestError: The request asks for nothing, or sets what the launcher sets.
    """
    _check(request)
    folder = home.job(request.require_name())
    steps = [_initializer(role, source, folder, home) for role, source in fetching_here.sources(request)]
    steps += _nodes(request.trainer, runtime, folder) if request.trainer else []
    return {
        "version": 1,
        "runtime": runtime.name if request.trainer else None,
        "steps": steps,
        "environment": _environment(request.trainer),
        "active_deadline_seconds": request.active_deadline_seconds,
        "suspend": request.suspend,
    }


def _check(request: TrainJobRequest) -> None:
    trainer = request.trainer
    if trainer is None and not fetching_here.sources(request):
        raise InvalidRequestError(
            "the request has neither a trainer nor an initializer; local processes have nothing to run"
        )
    if trainer is not None and trainer.kind == "container":
        raise UnsupportedError(
            "CustomTrainerContainer runs an image, which local processes cannot; give a CustomTrainer with a function, "
            "or use the container or kubernetes backend"
        )
    if trainer is not None and trainer.kind == "builtin":
        raise UnsupportedError("BuiltinTrainer needs the image of its recipe; use the kubernetes backend")
    if request.patches:
        raise UnsupportedError(
            "RuntimePatch changes pods, which local processes have not; leave it out on this backend"
        )
    if request.cluster_only():
        raise UnsupportedError(f"{', '.join(request.cluster_only())}: only a cluster has that; leave it out")
    if trainer is not None:
        reserved = sorted(set(trainer.env) & set(_RESERVED))
        if reserved:
            raise InvalidRequestError(f"trainer.env must not set {', '.join(reserved)}: the launcher sets it")


def _initializer(role: str, source: InitializerSource, folder: JobFolder, home: Home) -> dict[str, Any]:
    fetching_here.check_supported(role, source)
    name = f"{role}-initializer"
    told = fetching_here.variables(role, source)
    told.update(CACHE=str(home.cache / role), TARGET=str(folder.workspace / role), PRIVATE="1")
    env = {PREFIX + key: value for key, value in told.items()}
    env[contract.TERMINATION_LOG] = str(folder.termination(name))
    return {"name": name, "kind": "initializer", "command": [_PYTHON, "-m", "trainer_core.fetching"], "env": env}


def _nodes(trainer: TrainerRequest, runtime: LocalRuntime, folder: JobFolder) -> list[dict[str, Any]]:
    count = trainer.num_nodes or runtime.num_nodes
    if runtime.framework != "torch" and (trainer.num_proc_per_node or 1) > 1:
        raise UnsupportedError(
            f"runtime {runtime.name!r} starts one process for each node, not num_proc_per_node="
            f"{trainer.num_proc_per_node}; use torch-distributed, or more nodes"
        )
    processes = trainer.num_proc_per_node or _processes(trainer)
    return [_node(rank, count, processes, trainer, runtime, folder) for rank in range(count)]


def _node(
    rank: int, count: int, processes: int, trainer: TrainerRequest, runtime: LocalRuntime, folder: JobFolder
) -> dict[str, Any]:
    env = {
        **runtime.env,
        **trainer.env,
        "TRAINJOB_PAYLOAD": str(folder.payload),
        "TRAINJOB_TERMINATION_LOG": str(folder.termination(f"node-{rank}")),
        "TRAINJOB_DATASET_PATH": str(folder.workspace / "dataset"),
        "TRAINJOB_MODEL_PATH": str(folder.workspace / "model"),
        "TRAINJOB_OUTPUT_PATH": str(folder.workspace / "output"),
    }
    if trainer.result_uri:
        env["TRAINJOB_RESULT_URI"] = trainer.result_uri
    bootstrap = str(folder.code / BOOTSTRAP)
    if runtime.framework != "torch":
        env.update(RANK=str(rank), WORLD_SIZE=str(count))
        return {"name": f"node-{rank}", "kind": "node", "command": [_PYTHON, bootstrap], "env": env}
    env.update(PET_NNODES=str(count), PET_NPROC_PER_NODE=str(processes), PET_NODE_RANK=str(rank))
    env.update(PET_MASTER_ADDR="127.0.0.1")
    env.setdefault("OMP_NUM_THREADS", "1")
    command = [_PYTHON, "-m", "torch.distributed.run", bootstrap]
    return {"name": f"node-{rank}", "kind": "node", "command": command, "env": env}


def _processes(trainer: TrainerRequest) -> int:
    """Trainer's rule for torch: one for each device, else one for each whole cpu, at least one (specs.md A7)."""
    device = resources.device(trainer.resources_per_node or {})
    return max(1, int(resources.parse_quantity(device[1]))) if device else 1


def _environment(trainer: TrainerRequest | None) -> dict[str, Any] | None:
    if trainer is None or not trainer.packages:
        return None
    return {"packages": sorted(set(trainer.packages)), "index_urls": list(trainer.pip_index_urls)}
