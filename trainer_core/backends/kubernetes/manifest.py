"""request + runtime + server → the exact TrainJob, and the Secret beside it. Pure.

Numbers, names and texts change their spelling here; `admission` has judged before, the server decides after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from trainer_core import shipping, torchtune
from trainer_core.backends.kubernetes import distributed, versions
from trainer_core.backends.kubernetes.versions import Server
from trainer_core.cluster import kinds, marks, objects, runtimes
from trainer_core.inside import contract
from trainer_core.options import RuntimePatch
from trainer_core.options.patches import merged
from trainer_core.request import TrainerRequest, TrainJobRequest

__all__ = ["CACHE", "INITIALIZER_VOLUME", "patches", "trainjob"]

CACHE = "cache://"
#: The volume between initializers and nodes: admission looks for a mount of this name.
INITIALIZER_VOLUME = "initializer"
_WORKSPACE = "/workspace"
#: How the processes of a function are started where the policy of the runtime has a launcher.
_LAUNCHES: dict[str | None, Literal["torchrun", "mpirun"]] = {"torch": "torchrun", "mpi": "mpirun"}


def trainjob(
    request: TrainJobRequest, runtime: Mapping[str, Any], server: Server, namespace: str, attempt: int = 0
) -> dict[str, Any]:
    """Return the TrainJob of a named request.

    Args:
        request: The request.
        runtime: Its runtime, as the cluster has it.
        server: What the cluster's Trainer takes.
        namespace: Where the job is to run.
        attempt: Which attempt of its owner it is.

    Raises:
        UnsupportedError: The cluster's Trainer cannot express it, or it is too large.
        InvalidRequestError: The request has no name.
    """
    spec = {
        "runtimeRef": {
            "apiGroup": kinds.TRAINJOBS.group,
            "kind": runtimes.kind(runtime).value,
            "name": runtimes.name(runtime),
        },
        **_initializer(request),
        # Without it a torch runtime would tell its nodes nothing of each other (specs.md A7).
        "trainer": _trainer(request, runtime),
        **versions.overrides(patches(request, runtime, server), server),
        **objects.life(request),
    }
    versions.check(spec, server)
    return {
        "apiVersion": kinds.TRAINJOBS.api_version,
        "kind": kinds.TRAINJOBS.kind,
        "metadata": objects.metadata(request, namespace, attempt, {marks.RUNTIME: runtimes.record(runtime)}),
        "spec": spec,
    }


def patches(request: TrainJobRequest, runtime: Mapping[str, Any], server: Server) -> list[dict[str, Any]]:
    """Return the patches of a request.

    Our own manager's is laid over what a DistributedConfig says, and the volumes that sources need are laid over that.
    """
    found = [dict(patch) for patch in request.patches]
    index = next((at for at, each in enumerate(found) if each.get("manager") == RuntimePatch.manager), len(found))
    ours: dict[str, Any] = {}
    for layer in (distributed.patch(request, runtime), *found[index : index + 1], _volumes(request, runtime, server)):
        ours = merged(ours, layer)
    if ours:
        found[index : index + 1] = [{"manager": RuntimePatch.manager, **ours}]
    return found


def _initializer(request: TrainJobRequest) -> dict[str, Any]:
    fetched = {
        role: _set(storageUri=source.storage_uri, env=objects.source_env(role, source, request))
        for role, source in objects.sources(request)
        if not source.storage_uri.startswith(objects.PVC)
    }
    return {"initializer": fetched} if fetched else {}


def _trainer(request: TrainJobRequest, runtime: Mapping[str, Any]) -> dict[str, Any]:
    trainer, given = request.trainer, distributed.variables(request)
    if trainer is None:
        return _set(env=given, resourcesPerNode=distributed.resources(request))
    env = objects.trainer_env(request)
    if trainer.code is not None and runtimes.policy(runtime) is None:
        env[contract.NODES] = str(trainer.num_nodes or runtimes.num_nodes(runtime))
    names = sorted({*env, *(entry["name"] for entry in given)})
    command, args = _command(request, trainer, runtimes.policy(runtime), names)
    return _set(
        image=trainer.image,
        command=command,
        args=args,
        env=[*objects.variables(env), *given],
        numNodes=trainer.num_nodes,
        numProcPerNode=trainer.num_proc_per_node,
        resourcesPerNode=_resources(trainer) or distributed.resources(request),
    )


def _resources(trainer: TrainerRequest) -> dict[str, Any] | None:
    per_node = dict(sorted((trainer.resources_per_node or {}).items()))
    return {"requests": per_node, "limits": dict(per_node)} if per_node else None


def _command(
    request: TrainJobRequest, trainer: TrainerRequest, policy: str | None, env: list[str]
) -> tuple[list[str] | None, list[str] | None]:
    """Command and arguments; None leaves the runtime's."""
    if trainer.kind == "builtin":
        dataset = getattr(request.initializer, "dataset", None)
        args = torchtune.arguments(trainer.config or {}, dataset.storage_uri if dataset else None)
        return ["tune", "run"], [objects.literal(arg) for arg in args]
    if trainer.kind == "container" or trainer.code is None:
        # Written for a container by somebody who may well mean Kubernetes' $(NAME).
        return (
            None if trainer.command is None else list(trainer.command),
            None if trainer.args is None else list(trainer.args),
        )
    # The launcher of MPI alone has the environment; it hands on what it is told to, by name.
    launch = _LAUNCHES.get(policy)
    packages, indexes, processes = trainer.packages, trainer.pip_index_urls, trainer.num_proc_per_node
    argv = shipping.argv(trainer.code, packages, indexes, launch or "python", exported=env, processes=processes)
    loaded = argv.index(shipping.LOADER) + 1
    return argv[:loaded], argv[loaded:]


def _volumes(request: TrainJobRequest, runtime: Mapping[str, Any], server: Server) -> dict[str, Any]:
    """What is to be laid over the pods of the runtime, in the shape of a patch."""
    found: dict[str, dict[str, Any]] = {}
    for role, source in objects.sources(request):
        if source.storage_uri.startswith(objects.PVC):
            for job in distributed.nodes(runtime):
                found[job] = merged(found.get(job, {}), objects.claimed(role, source.storage_uri))
        elif source.storage_uri.startswith(CACHE) and server.checks_initializer_mount:
            found.update(_for_the_cache(runtime))
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": spec}}}} for name, spec in found.items()]
    return {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}} if jobs else {}


def _for_the_cache(runtime: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The stock runtime for the cache lacks the mount that admission wants of it since 2.3 (specs.md F5)."""
    name = runtimes.DATASET_INITIALIZER
    job = runtimes.job(runtime, name)
    container = runtimes.container(job, name) if job else None
    if container is None or any(m.get("name") == INITIALIZER_VOLUME for m in container.get("volumeMounts") or ()):
        return {}
    mount = {"name": INITIALIZER_VOLUME, "mountPath": _WORKSPACE}
    pod: dict[str, Any] = {"containers": [{"name": name, "volumeMounts": [mount]}]}
    if INITIALIZER_VOLUME not in runtimes.volumes(runtime, job or {}):
        pod["volumes"] = [{"name": INITIALIZER_VOLUME, "emptyDir": {}}]
    return {name: pod}


def _set(**fields: Any) -> dict[str, Any]:
    """The fields that are given; an empty list counts as not given only for ``env``."""
    return {name: value for name, value in fields.items() if value is not None and not (name == "env" and not value)}
