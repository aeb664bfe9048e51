"""request + runtime + server → the exact TrainJob, and the Secret beside it. Pure.

Numbers, names and texts change their spelling here; `admission` has judged before, the server decides after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from trainer_core import shipping, torchtune
from trainer_core.backends.kubernetes import versions
from trainer_core.backends.kubernetes.versions import Server
from trainer_core.cluster import kinds, marks, runtimes
from trainer_core.cluster.kinds import Kind
from trainer_core.errors import UnsupportedError
from trainer_core.initializers import DATASET_PATH, MODEL_PATH
from trainer_core.inside import contract
from trainer_core.options import RuntimePatch
from trainer_core.options.patches import merged
from trainer_core.request import InitializerSource, TrainerRequest, TrainJobRequest
from trainer_core.secrets import SecretRef

__all__ = [
    "CACHE",
    "INITIALIZER_VOLUME",
    "PVC",
    "ROLES",
    "metadata",
    "patches",
    "secret",
    "source_env",
    "sources",
    "trainjob",
]

#: What can be fetched first, and where it lies in the training containers.
ROLES = {"dataset": DATASET_PATH, "model": MODEL_PATH}
#: A volume with what an earlier job has fetched.
PVC = "pvc://"
CACHE = "cache://"
#: The volume between initializers and nodes: admission looks for a mount of this name.
INITIALIZER_VOLUME = "initializer"
_WORKSPACE = "/workspace"
_MAX_ANNOTATIONS = 262_144
_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
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
        **life(request),
    }
    versions.check(spec, server)
    return {
        "apiVersion": kinds.TRAINJOBS.api_version,
        "kind": kinds.TRAINJOBS.kind,
        "metadata": metadata(request, namespace, attempt, {marks.RUNTIME: runtimes.record(runtime)}),
        "spec": spec,
    }


def secret(
    request: TrainJobRequest, job: str, namespace: str, owner_uid: str, owner: Kind = kinds.TRAINJOBS
) -> dict[str, Any] | None:
    """Return the Secret with what a request was given as literal text; None where there is nothing of the kind.

    Args:
        request: The request.
        job: Name of the job that it belongs to and goes with.
        namespace: Where the job runs.
        owner_uid: The job's uid.
        owner: The job's kind.
    """
    if not request.literal_secrets:
        return None
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": job, "uid": owner_uid}
    return {
        "apiVersion": kinds.SECRETS.api_version,
        "kind": kinds.SECRETS.kind,
        "metadata": {
            "name": _secret_name(job),
            "namespace": namespace,
            "labels": {marks.MANAGED_BY: marks.MANAGER},
            "ownerReferences": [reference],
        },
        "type": "Opaque",
        "stringData": {key: value.get_secret_value() for key, value in sorted(request.literal_secrets.items())},
    }


def metadata(
    request: TrainJobRequest, namespace: str, attempt: int, more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the metadata of a job of ours.

    Raises:
        UnsupportedError: The request is larger than annotations can be.
        InvalidRequestError: The request has no name.
    """
    labels = {**request.metadata.labels, marks.MANAGED_BY: marks.MANAGER}
    if request.owner:
        labels[marks.OWNER] = marks.owner_value(request.owner.key)
    if request.delete_after_seconds is not None:
        labels[marks.DELETE_AFTER] = str(request.delete_after_seconds)
    annotations = {
        **request.metadata.annotations,
        marks.REQUEST: request.to_json(),
        marks.FINGERPRINT: request.fingerprint(),
        marks.ATTEMPT: str(attempt),
        **(more or {}),
    }
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _MAX_ANNOTATIONS:
        raise UnsupportedError(
            f"the request and its annotations are {size} bytes, and Kubernetes keeps {_MAX_ANNOTATIONS} with a job; "
            "pass large arguments as a path or URI, or give the function as packaging='reference'"
        )
    return {"name": request.require_name(), "namespace": namespace, "labels": labels, "annotations": annotations}


def sources(request: TrainJobRequest) -> Iterator[tuple[str, InitializerSource]]:
    """Yield what a request fetches first, by ``dataset`` and ``model``."""
    for role in ROLES:
        source = getattr(request.initializer, role, None)
        if source is not None:
            yield role, source


def source_env(role: str, source: InitializerSource, request: TrainJobRequest) -> list[dict[str, Any]]:
    """Return what an initializer is told besides where to fetch from, sorted by name; secrets by reference."""
    env: dict[str, str | SecretRef] = {**source.env, **source.secrets}
    if source.ignore_patterns is not None:
        env["IGNORE_PATTERNS"] = ",".join(source.ignore_patterns)
    for key in request.literal_secrets:
        of, _, name = key.partition(".")
        if of == role:
            env[name] = SecretRef(_secret_name(request.require_name()), key)
    return _env(env)


def patches(request: TrainJobRequest, runtime: Mapping[str, Any], server: Server) -> list[dict[str, Any]]:
    """Return the patches of a request, with the volumes that its sources need laid over our own manager's."""
    found = [dict(patch) for patch in request.patches]
    ours = _volumes(request, runtime, server)
    if not ours:
        return found
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": spec}}}} for name, spec in ours.items()]
    patch = {
        "manager": RuntimePatch.manager,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
    }
    for index, other in enumerate(found):
        if other.get("manager") == RuntimePatch.manager:
            found[index] = merged(other, patch)
            return found
    return [*found, patch]


def _initializer(request: TrainJobRequest) -> dict[str, Any]:
    fetched = {
        role: _set(storageUri=source.storage_uri, env=source_env(role, source, request))
        for role, source in sources(request)
        if not source.storage_uri.startswith(PVC)
    }
    return {"initializer": fetched} if fetched else {}


def _trainer(request: TrainJobRequest, runtime: Mapping[str, Any]) -> dict[str, Any]:
    trainer = request.trainer
    if trainer is None:
        return {}
    env: dict[str, str | SecretRef] = {**trainer.env, contract.NAME: request.require_name()}
    if trainer.result_uri:
        env[contract.RESULT_URI] = trainer.result_uri
    if trainer.code is not None and runtimes.policy(runtime) is None:
        env[contract.NODES] = str(trainer.num_nodes or runtimes.num_nodes(runtime))
    command, args = _command(request, trainer, runtimes.policy(runtime), sorted(env))
    per_node = dict(sorted((trainer.resources_per_node or {}).items()))
    return _set(
        image=trainer.image,
        command=command,
        args=args,
        env=_env(env),
        numNodes=trainer.num_nodes,
        numProcPerNode=trainer.num_proc_per_node,
        resourcesPerNode={"requests": per_node, "limits": dict(per_node)} if per_node else None,
    )


def _command(
    request: TrainJobRequest, trainer: TrainerRequest, policy: str | None, env: list[str]
) -> tuple[list[str] | None, list[str] | None]:
    """Command and arguments; None leaves the runtime's."""
    if trainer.kind == "builtin":
        dataset = getattr(request.initializer, "dataset", None)
        args = torchtune.arguments(trainer.config or {}, dataset.storage_uri if dataset else None)
        return ["tune", "run"], [_literal(arg) for arg in args]
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


def life(request: TrainJobRequest) -> dict[str, Any]:
    """Return what the specs of a TrainJob and of a Job say about how they live, in the same words."""
    return _set(
        activeDeadlineSeconds=request.active_deadline_seconds,
        suspend=request.suspend or None,
        # Trainer's own controller is the default of a TrainJob, and a Job knows nothing of it.
        managedBy=None if request.managed_by == _CONTROLLER else request.managed_by,
    )


def _volumes(request: TrainJobRequest, runtime: Mapping[str, Any], server: Server) -> dict[str, dict[str, Any]]:
    """Pod specs to be laid over the runtime's, by the name of the replicated job."""
    found: dict[str, dict[str, Any]] = {}
    for role, source in sources(request):
        if source.storage_uri.startswith(PVC):
            for job in _nodes(runtime):
                found[job] = merged(found.get(job, {}), _claimed(role, source.storage_uri))
        elif source.storage_uri.startswith(CACHE) and server.checks_initializer_mount:
            found.update(_for_the_cache(runtime))
    return found


def _nodes(runtime: Mapping[str, Any]) -> list[str]:
    """The replicated jobs whose pods train: with MPI the launcher and the others."""
    trainer = runtimes.trainer_job(runtime)
    names = [trainer["name"]] if trainer else []
    if runtimes.policy(runtime) == "mpi" and runtimes.job(runtime, runtimes.NODE) is not None:
        names.append(runtimes.NODE)
    return list(dict.fromkeys(names))


def _claimed(role: str, uri: str) -> dict[str, Any]:
    """A volume of its own for each source: the server tells mounts apart by their volumes' names."""
    claim, _, path = uri.removeprefix(PVC).partition("/")
    volume = f"trainjob-{role}"
    mount = _set(name=volume, mountPath=ROLES[role], subPath=path.strip("/") or None, readOnly=True)
    return {
        "volumes": [{"name": volume, "persistentVolumeClaim": {"claimName": claim}}],
        "containers": [{"name": runtimes.NODE, "volumeMounts": [mount]}],
    }


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


def _env(values: Mapping[str, str | SecretRef]) -> list[dict[str, Any]]:
    return [_entry(name, value) for name, value in sorted(values.items())]


def _entry(name: str, value: str | SecretRef) -> dict[str, Any]:
    if isinstance(value, SecretRef):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": value.name, "key": value.key}}}
    return {"name": name, "value": _literal(value)}


def _literal(text: str) -> str:
    """Kubernetes reads ``$(NAME)`` and ``$$`` in the values of variables and in arguments; here nobody meant them."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def _secret_name(job: str) -> str:
    return f"{job}-initializer"


def _set(**fields: Any) -> dict[str, Any]:
    """The fields that are given; an empty list counts as not given only for ``env``."""
    return {name: value for name, value in fields.items() if value is not None and not (name == "env" and not value)}
