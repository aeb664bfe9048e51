"""request + runtime → what a job's containers are made of. Pure.

Nothing is decided after it, but where the engine and the clock come in: the volume between initializers and nodes has
the job's identity in its name, and a folder of this machine is where copying it has left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from trainer_core import resources, shipping
from trainer_core.backends.container import names, pod
from trainer_core.cluster import runtimes
from trainer_core.configs import ContainerBackendConfig
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.initializers import DATASET_PATH, MODEL_PATH
from trainer_core.inside import contract
from trainer_core.request import InitializerSource, TrainerRequest, TrainJobRequest

__all__ = ["CACHE", "COPY", "FETCH", "NODE", "PLACES", "RESULT", "TERMINATION", "lean", "render", "whole"]

#: Kinds of steps: a folder of this machine is copied, an image fetches, a node trains.
COPY, FETCH, NODE = "copy", "fetch", "node"
#: Where what was fetched lies in a container, by role.
PLACES = {"dataset": DATASET_PATH, "model": MODEL_PATH}
#: Files that a node leaves, read from the container when it has ended. The system's own /dev/termination-log is gone
#: by then; everybody can write here, whatever user a container has.
TERMINATION = "/tmp/trainjob-termination.json"  # noqa: S108
RESULT = "/tmp/trainjob-result.json"  # noqa: S108
#: Where a container sees what was fetched for any job: what is there already is linked to and not fetched again.
CACHE = "/trainjob-cache"
_WORKSPACE = "/workspace"
#: Of a network of its own: nobody else has taken it.
_PORT = 29500
_VOLUME, _FILE = "pvc", "file"
_FETCHED = ("hf", "s3")
_WHY_NOT = {
    "mpi": "starts its processes by mpirun over ssh between its nodes, which containers of an engine do not have",
    "flux": "needs the brokers of Flux, which an init container of the cluster installs",
}
_RESERVED = ("PET_", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "DMLC_")


def render(request: TrainJobRequest, runtime: Mapping[str, Any], config: ContainerBackendConfig) -> dict[str, Any]:
    """Return the plan of a named request.

    Args:
        request: The request.
        runtime: Its runtime; not looked at where there is no trainer.
        config: Of the backend.

    Raises:
        UnsupportedError: Containers of an engine cannot do what is asked for.
        InvalidRequestError: The request asks for nothing, or sets what is set here.
    """
    _check(request)
    images = {"dataset": config.dataset_initializer_image, "model": config.model_initializer_image}
    steps = [_initializer(role, source, request, images[role]) for role, source in _fetched(request)]
    steps += _nodes(request, request.trainer, runtime) if request.trainer else []
    return {
        "version": 1,
        "name": request.require_name(),
        "runtime": runtimes.name(runtime) if request.trainer else None,
        "steps": steps,
        "pull_policy": config.pull_policy,
        "auto_remove": config.auto_remove,
        "initializer_timeout": config.initializer_timeout,
        "active_deadline_seconds": request.active_deadline_seconds,
        "delete_after_seconds": request.delete_after_seconds,
        "suspend": request.suspend,
    }


def lean(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan without what travels in the commands of functions: labels keep it, and every look reads them."""
    steps = [{k: v for k, v in step.items() if k != "command" or not step.get("launch")} for step in plan["steps"]]
    return {**plan, "steps": steps}


def whole(plan: Mapping[str, Any], request: TrainJobRequest) -> dict[str, Any]:
    """Return a plan as it was before `lean`."""
    steps = [
        {**step, "command": _shipped(request.trainer, step["launch"])}
        if step.get("launch") and request.trainer
        else step
        for step in plan["steps"]
    ]
    return {**plan, "steps": steps}


def _check(request: TrainJobRequest) -> None:
    trainer, initializer = request.trainer, request.initializer
    if trainer is None and (initializer is None or not (initializer.dataset or initializer.model)):
        raise InvalidRequestError("the request has neither a trainer nor an initializer; there is nothing to run")
    beyond = [each for each in request.cluster_only() if each != "delete_after_seconds"]
    if beyond:
        raise UnsupportedError(f"{', '.join(beyond)}: only a cluster has that; leave it out")
    if trainer is None:
        if request.patches:
            raise UnsupportedError("RuntimePatch changes a runtime, and a job that only fetches has none; leave it out")
        return
    if trainer.kind == "builtin":
        raise UnsupportedError(
            "BuiltinTrainer: the command of its recipe is made by Trainer's controller; use the kubernetes backend"
        )
    reserved = sorted(name for name in trainer.env if name.startswith(_RESERVED))
    if reserved:
        raise InvalidRequestError(f"trainer.env must not set {', '.join(reserved)}: the backend sets it")


def _fetched(request: TrainJobRequest) -> Iterator[tuple[str, InitializerSource]]:
    """What has to be fetched first, by role; a volume of the engine is there already."""
    for role, source in _sources(request):
        if not source.storage_uri.startswith(f"{_VOLUME}://"):
            yield role, source
        elif request.trainer is None:
            raise UnsupportedError(
                f"initializer.{role}: {_VOLUME}:// lies in a volume already; give it to the job that reads it"
            )


def _sources(request: TrainJobRequest) -> Iterator[tuple[str, InitializerSource]]:
    for role in PLACES:
        source = getattr(request.initializer, role, None)
        if source is not None:
            yield role, source


def _initializer(role: str, source: InitializerSource, request: TrainJobRequest, image: str) -> dict[str, Any]:
    scheme = source.storage_uri.partition("://")[0]
    step = {"name": f"{role}-initializer", "role": role, "uri": source.storage_uri}
    if source.secrets:
        raise UnsupportedError(
            f"initializer.{role}: {', '.join(source.secrets)} is a SecretRef, which only a cluster can look up; give "
            "the text itself, which no description, log or argument shows"
        )
    if scheme == _FILE:
        if source.link and source.ignore_patterns:
            raise UnsupportedError(
                f"initializer.{role}: link=True shows the folder as it is, so that ignore_patterns hide nothing of it; "
                "leave one of them out"
            )
        ignore = list(source.ignore_patterns or ())
        return {**step, "kind": COPY, "link": source.link, "ignore_patterns": ignore}
    if scheme not in _FETCHED:
        raise UnsupportedError(
            f"initializer.{role}: {scheme}:// cannot be fetched here; use hf://, s3://, file:// or {_VOLUME}://"
        )
    env = {**source.env, "STORAGE_URI": source.storage_uri}
    if source.ignore_patterns is not None:
        env["IGNORE_PATTERNS"] = ",".join(source.ignore_patterns)
    return {
        **step,
        "kind": FETCH,
        "image": image,
        "env": dict(sorted(env.items())),
        "secrets": sorted(key for key in request.literal_secrets if key.startswith(f"{role}.")),
        "mounts": [{"type": "data", "target": _WORKSPACE}, {"type": "cache", "target": CACHE}],
    }


def _nodes(request: TrainJobRequest, trainer: TrainerRequest, runtime: Mapping[str, Any]) -> list[dict[str, Any]]:
    policy = runtimes.policy(runtime)
    if policy in _WHY_NOT:
        raise UnsupportedError(
            f"runtime {runtimes.name(runtime)!r} {_WHY_NOT[policy]}; use torch-distributed, or the kubernetes backend"
        )
    spec = pod.patched(runtime, request.patches)
    container, made = pod.node(spec), pod.settings(spec)
    made.update(pod.limits(resources.validate(trainer.resources_per_node or {}), container))
    count = trainer.num_nodes or runtimes.num_nodes(runtime)
    processes = _processes(trainer, policy, made, runtime)
    env = {**made.pop("env"), **trainer.literal_env, **_own_env(request, trainer)}
    mounts = _all_different([*made.pop("mounts"), *_data(request)])
    step = {
        "kind": NODE,
        "image": trainer.image or container.get("image"),
        **_command(trainer, container, policy),
        **({"result_uri": trainer.result_uri} if trainer.result_uri else {}),
        **made,
        "mounts": mounts,
    }
    return [_node(rank, count, processes, policy, request.require_name(), env, step) for rank in range(count)]


def _node(
    rank: int, count: int, processes: int, policy: str | None, name: str, env: dict[str, str], step: dict[str, Any]
) -> dict[str, Any]:
    called = f"node-{rank}"
    told = _rendezvous(policy, rank, count, processes, names.host(name, "node-0"))
    return {"name": called, "host": names.host(name, called), **step, "env": dict(sorted({**env, **told}.items()))}


def _rendezvous(policy: str | None, rank: int, count: int, processes: int, master: str) -> dict[str, str]:
    """What tells the nodes of each other, in the words of Trainer's controller (specs.md A7)."""
    if policy == "torch":
        address = {"PET_MASTER_ADDR": master, "PET_MASTER_PORT": str(_PORT)}
        return {**address, "PET_NNODES": str(count), "PET_NPROC_PER_NODE": str(processes), "PET_NODE_RANK": str(rank)}
    if policy == "jax":
        place = {"JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(rank)}
        return {**place, "JAX_COORDINATOR_ADDRESS": f"{master}:{_PORT}"}
    if policy == "xgboost":
        tracker = {"DMLC_TRACKER_URI": master, "DMLC_TRACKER_PORT": str(_PORT)}
        return {**tracker, "DMLC_TASK_ID": str(rank), "DMLC_NUM_WORKER": str(count * processes)}
    return {contract.NODES: str(count), "RANK": str(rank), "WORLD_SIZE": str(count)}


def _processes(trainer: TrainerRequest, policy: str | None, made: Mapping[str, Any], runtime: Mapping[str, Any]) -> int:
    """Trainer's rule: one for each gpu, else for torch one for each whole cpu, at least one."""
    if policy != "torch" and (trainer.num_proc_per_node or 1) > 1:
        raise UnsupportedError(
            f"runtime {runtimes.name(runtime)!r} starts one process for each node, not num_proc_per_node="
            f"{trainer.num_proc_per_node}; use torch-distributed, or more nodes"
        )
    cpus = made.get("nano_cpus", 0) // 10**9 if policy == "torch" else 0
    return trainer.num_proc_per_node or made.get("gpus") or max(1, cpus)


def _own_env(request: TrainJobRequest, trainer: TrainerRequest) -> dict[str, str]:
    result = {contract.RESULT_URI: RESULT} if trainer.result_uri else {}
    return {contract.NAME: request.require_name(), contract.TERMINATION_LOG: TERMINATION, **result}


def _command(trainer: TrainerRequest, container: Mapping[str, Any], policy: str | None) -> dict[str, Any]:
    """What runs: a function, or entry point and arguments; None leaves the image's."""
    if trainer.code is not None:
        launch = "torchrun" if policy == "torch" else "python"
        return {"launch": launch, "command": _shipped(trainer, launch)}
    command = trainer.command if trainer.command is not None else container.get("command")
    args = trainer.args if trainer.args is not None else container.get("args")
    given = {"command": command and list(command), "args": args and list(args)}
    return {key: value for key, value in given.items() if value is not None}


def _shipped(trainer: TrainerRequest, launch: str) -> list[str]:
    if trainer.code is None:
        raise InvalidRequestError("trainer.code: it is gone from the request that this job was made from")
    way: Literal["torchrun", "python"] = "torchrun" if launch == "torchrun" else "python"
    return shipping.argv(
        trainer.code, trainer.packages, trainer.pip_index_urls, way, processes=trainer.num_proc_per_node
    )


def _data(request: TrainJobRequest) -> Iterator[dict[str, Any]]:
    """Where the nodes see what was fetched."""
    if any(not source.storage_uri.startswith((f"{_FILE}://", f"{_VOLUME}://")) for _, source in _sources(request)):
        yield {"type": "data", "target": _WORKSPACE}
        yield {"type": "cache", "target": CACHE, "read_only": True}
    for role, source in _sources(request):
        scheme, _, rest = source.storage_uri.partition("://")
        if scheme == _FILE:
            yield {"type": "copied", "role": role, "target": PLACES[role], "read_only": True}
        elif scheme == _VOLUME:
            volume, _, path = rest.partition("/")
            if path.strip("/") not in ("", role):
                raise UnsupportedError(
                    f"initializer.{role}: engines mount whole volumes; give {_VOLUME}://{volume}, or "
                    f"{_VOLUME}://{volume}/{role} for one that `initialize` has filled"
                )
            target = _WORKSPACE if path.strip("/") else PLACES[role]
            yield {"type": "volume", "source": volume, "target": target, "read_only": True}


def _all_different(mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Refuse two volumes at one place; dataset and model may lie in the same one."""
    by_target: dict[str, dict[str, Any]] = {}
    for mount in mounts:
        if by_target.setdefault(mount["target"], mount) != mount:
            raise UnsupportedError(
                f"two volumes are to be mounted at {mount['target']}; give one of them another place"
            )
    return list(by_target.values())
