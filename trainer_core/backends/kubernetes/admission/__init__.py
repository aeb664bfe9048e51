"""What a cluster would refuse later, or would not notice: said before anything is created. Pure.

Admission checks little of what can go wrong between a request and its runtime (specs.md A6, F): values for which the
runtime has no place are dropped in silence, and names that grow too long fail when the pods are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.backends.kubernetes import distributed
from trainer_core.backends.kubernetes.admission import patching, recipes
from trainer_core.backends.kubernetes.manifest import CACHE, INITIALIZER_VOLUME, patches
from trainer_core.backends.kubernetes.versions import Server
from trainer_core.cluster import runtimes
from trainer_core.cluster.objects import PVC, check_claim, check_metadata, sources, trainer_env
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.request import InitializerSource, TrainerRequest, TrainJobRequest

__all__ = ["check", "warnings"]

_MAX_LABEL = 63
#: ``-xxxxx``, which the Job controller appends to the name of a pod.
_RANDOM_SUFFIX = 6
_TRAINERS = {"custom": "CustomTrainer", "container": "CustomTrainerContainer", "builtin": "BuiltinTrainer"}
#: Policies whose nodes meet at ``<job>-node-0-0.<job>``, whatever the runtime calls them.
_MEETING = ("torch", "jax", "xgboost", "flux")
#: What Trainer's initializers fetch.
_FETCHED = {"dataset": ("hf", "s3", "cache"), "model": ("hf", "s3")}


def check(request: TrainJobRequest, runtime: Mapping[str, Any], server: Server, namespace: str) -> None:
    """Refuse what the cluster would refuse, now or when it makes the pods, and what it would drop in silence.

    Args:
        request: A named request.
        runtime: Its runtime, as the cluster has it.
        server: What the cluster's Trainer takes.
        namespace: Where it is to run.

    Raises:
        UnsupportedError: The runtime or the cluster's Trainer cannot do it.
        InvalidRequestError: A value is reserved or cannot be right.
    """
    check_metadata(request)
    _check_namespace(runtime, namespace)
    _check_deadline(request, server)
    if request.workspace is not None:
        raise UnsupportedError("workspace: only `initialize` fetches into a volume; leave it out")
    distributed.check(request, runtime)
    request = distributed.counted(request)
    if request.trainer is not None:
        _check_kind(request.trainer, runtime)
        _check_processes(request.trainer, runtime)
    if request.trainer is not None or request.distributed is not None:
        _check_places(request, runtime, server)
        _check_env(request, runtime)
    _check_nodes(request.trainer, runtime)
    _check_names(request.trainer, runtime, request.require_name())
    laid = patches(request, runtime, server)
    for role in ("dataset", "model"):
        _check_step(role, request, runtime, server, laid)
    for role, source in sources(request):
        _check_source(role, source, runtime)
    patching.check(laid, runtime)
    recipes.check(request, runtime)


def warnings(request: TrainJobRequest, runtime: Mapping[str, Any]) -> list[str]:
    """Return what a user should know although the job can run, one line each."""
    found = []
    if runtimes.is_deprecated(runtime):
        found.append(f"runtime {runtimes.name(runtime)!r} is deprecated; ask its administrator what replaces it")
    mpi = (runtime["spec"].get("mlPolicy") or {}).get("mpi") or {}
    if mpi.get("runLauncherAsNode") and request.trainer and request.trainer.num_nodes == 1:
        found.append(
            f"num_nodes=1: runtime {runtimes.name(runtime)!r} starts its launcher and one more node, so two nodes train"
        )
    return found


def _check_namespace(runtime: Mapping[str, Any], namespace: str) -> None:
    home = runtime["metadata"].get("namespace")
    if home and home != namespace:
        raise UnsupportedError(
            f"runtime {runtimes.name(runtime)!r} is a TrainingRuntime of namespace {home!r}, and the job is to run in "
            f"{namespace!r}; run it in {home!r}, or use a ClusterTrainingRuntime"
        )


def _check_deadline(request: TrainJobRequest, server: Server) -> None:
    if request.active_deadline_seconds is not None and not server.active_deadline:
        raise UnsupportedError(
            "active_deadline_seconds: this cluster's Trainer ends no job at a deadline, as it does from 2.2 on; "
            "leave it out, and cancel the job when a wait with a timeout ends"
        )


def _check_kind(trainer: TrainerRequest, runtime: Mapping[str, Any]) -> None:
    wants = trainer.kind == "builtin"
    if wants != (runtimes.framework(runtime) == "torchtune"):
        remedy = "a torchtune runtime" if wants else "a runtime such as torch-distributed, or a BuiltinTrainer"
        raise UnsupportedError(
            f"{_TRAINERS[trainer.kind]} can't be used with {runtimes.name(runtime)} runtime, whose framework is "
            f"{runtimes.framework(runtime)}; use {remedy}"
        )
    if trainer.kind == "custom" and runtimes.policy(runtime) == "flux":
        # Its controller joins command and arguments with blanks and gives them to a shell.
        raise UnsupportedError(
            f"CustomTrainer can't be used with {runtimes.name(runtime)} runtime: Flux splits commands at blanks; use a "
            "CustomTrainerContainer whose command has none in its words"
        )


def _check_places(request: TrainJobRequest, runtime: Mapping[str, Any], server: Server) -> None:
    """The runtime must have a place for what a trainer says; without it the controller drops the values."""
    shown = runtimes.name(runtime)
    if runtimes.trainer_job(runtime) is None:
        raise UnsupportedError(
            f"runtime {shown!r} labels none of its replicated jobs {runtimes.ANCESTOR}={runtimes.TRAINER}, so the "
            "trainer's image, command and env would be dropped; ask its administrator to label the job that trains"
        )
    if runtimes.trainer_container(runtime) is None:
        raise UnsupportedError(
            f"runtime {shown!r} has no container {runtimes.NODE!r} in its trainer job, so the trainer's image, command "
            f"and env would be dropped; ask its administrator to name the container {runtimes.NODE!r}"
        )
    # Trainer 2.3 alone leaves resources out where there is no policy at all.
    asked = (request.trainer and request.trainer.resources_per_node) or distributed.resources(request)
    if asked and server.termination_grace_period and runtime["spec"].get("mlPolicy") is None:
        raise UnsupportedError(
            f"resources_per_node: runtime {shown!r} has no mlPolicy, without which Trainer 2.3 drops them; ask its "
            "administrator for mlPolicy: {numNodes: 1}, or leave them out"
        )


def _check_env(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    policy = runtimes.policy(runtime)
    given = set(trainer_env(request))
    given.update(entry["name"] for entry in distributed.variables(request))
    reserved = sorted(given & set(runtimes.RESERVED.get(policy or "", ())))
    if reserved:
        raise InvalidRequestError(
            f"trainer.env must not set {', '.join(reserved)}: the {policy} policy of the runtime sets it; leave it out"
        )


def _check_processes(trainer: TrainerRequest, runtime: Mapping[str, Any]) -> None:
    """Without a launcher of torch, MPI or Flux, nobody reads how many processes a node shall have."""
    asked, policy = trainer.num_proc_per_node, runtimes.policy(runtime)
    if asked is None or policy in ("torch", "mpi", "flux"):
        return
    starts = max(1, recipes.gpus(trainer, runtime)) if policy == "xgboost" else 1
    if asked != starts:
        raise UnsupportedError(
            f"num_proc_per_node={asked}: runtime {runtimes.name(runtime)!r} ({policy or 'no'} policy) starts {starts} "
            "on each node whatever is asked for; leave it out, or use a torch or mpi runtime"
        )


def _check_nodes(trainer: TrainerRequest | None, runtime: Mapping[str, Any]) -> None:
    policy, asked = runtimes.policy(runtime), trainer.num_nodes if trainer else None
    if policy == "flux" and asked is None:
        raise UnsupportedError(
            f"num_nodes: runtime {runtimes.name(runtime)!r} is of Flux, whose controller needs it; give num_nodes"
        )
    if policy == "mpi":
        _check_mpi(asked, runtime)
    several = (asked or runtimes.num_nodes(runtime)) > 1
    rendezvous = policy in _MEETING and (several or (trainer is not None and trainer.kind == "custom"))
    if rendezvous:
        _check_meeting_place(runtime, policy)


def _check_mpi(asked: int | None, runtime: Mapping[str, Any]) -> None:
    missing = [name for name in ("launcher", runtimes.NODE) if runtimes.job(runtime, name) is None]
    if (asked or runtimes.num_nodes(runtime)) > 1 and missing:
        raise UnsupportedError(
            f"num_nodes must be 1: runtime {runtimes.name(runtime)!r} has no replicated job {' and '.join(missing)}, "
            "which MPI needs for several nodes; ask its administrator to add it"
        )


def _check_meeting_place(runtime: Mapping[str, Any], policy: str | None) -> None:
    """The controller tells all nodes to meet at the first pod of ``node`` in the job's own subdomain."""
    trainer = runtimes.trainer_job(runtime) or {}
    network = runtime["spec"]["template"].get("spec", {}).get("network") or {}
    wrong = None
    if trainer.get("name") != runtimes.NODE:
        wrong = f"its trainer job is called {trainer.get('name')!r} and not {runtimes.NODE!r}"
    elif network.get("subdomain"):
        wrong = f"its network.subdomain is {network['subdomain']!r}"
    elif network.get("enableDNSHostnames") is False:
        wrong = "its network.enableDNSHostnames is false"
    if wrong:
        raise UnsupportedError(
            f"runtime {runtimes.name(runtime)!r}: {wrong}, so its nodes would not find the place where the {policy} "
            "policy lets them meet; ask its administrator to change that"
        )


def _check_names(trainer: TrainerRequest | None, runtime: Mapping[str, Any], name: str) -> None:
    """Names of pods are labels: ``<job>-<replicated job>-<replica>-<index>-xxxxx``."""
    for job in runtimes.jobs(runtime):
        last = _pods(job, trainer, runtime) - 1
        suffix = f"-{job['name']}-{(job.get('replicas') or 1) - 1}-{last}"
        most = _MAX_LABEL - len(suffix) - _RANDOM_SUFFIX
        if len(name) > most:
            raise UnsupportedError(
                f"job name {name!r} has {len(name)} characters, and its pods would be called {name}{suffix}-xxxxx, "
                f"which is more than {_MAX_LABEL}; use at most {most} with runtime {runtimes.name(runtime)!r}"
            )


def _pods(job: Mapping[str, Any], trainer: TrainerRequest | None, runtime: Mapping[str, Any]) -> int:
    train = runtimes.NODE if runtimes.policy(runtime) == "mpi" else (runtimes.trainer_job(runtime) or {}).get("name")
    if job["name"] == train:
        return (trainer.num_nodes if trainer else None) or runtimes.num_nodes(runtime)
    return int(job["template"].get("spec", {}).get("parallelism") or 1)


def _check_source(role: str, source: InitializerSource, runtime: Mapping[str, Any]) -> None:
    scheme = source.storage_uri.partition("://")[0]
    if source.storage_uri.startswith(PVC):
        check_claim(role, source.storage_uri)
        if runtimes.trainer_container(runtime) is None:
            raise UnsupportedError(
                f"initializer.{role}: runtime {runtimes.name(runtime)!r} has no trainer job with a container "
                f"{runtimes.NODE!r} to mount the volume in; use another runtime"
            )
    elif scheme not in _FETCHED[role]:
        known = ", ".join(f"{each}://" for each in (*_FETCHED[role], "pvc"))
        raise UnsupportedError(f"initializer.{role}: a cluster fetches a {role} from {known}; got {scheme}://")


def _check_step(
    role: str,
    request: TrainJobRequest,
    runtime: Mapping[str, Any],
    server: Server,
    laid: list[dict[str, Any]],
) -> None:
    """An initializer needs its step in the runtime; a step without a source of its own needs an initializer."""
    source = dict(sources(request)).get(role)
    step = f"{role}-initializer"
    fetches = source is not None and not source.storage_uri.startswith((PVC, "file://"))
    if fetches:
        _check_has_step(role, step, runtime)
        if server.checks_initializer_mount and source is not None and not source.storage_uri.startswith(CACHE):
            _check_mount(role, step, runtime, laid)
        return
    found = runtimes.job_of(runtime, step)
    container = runtimes.container(found, step) if found else None
    if container is not None and not container.get("envFrom") and not _has_uri(container):
        raise UnsupportedError(
            f"initializer.{role}: runtime {runtimes.name(runtime)!r} has a step {step!r} that fetches nothing by "
            f"itself and would fail; give a {role} for it to fetch, or use a runtime without that step"
        )


def _has_uri(container: Mapping[str, Any]) -> bool:
    return any(entry.get("name") == "STORAGE_URI" for entry in container.get("env") or ())


def _check_has_step(role: str, step: str, runtime: Mapping[str, Any]) -> None:
    job = runtimes.job(runtime, step)
    lacks = None
    if job is None:
        lacks = f"no replicated job {step!r}"
    elif runtimes.container(job, step) is None:
        lacks = f"no container {step!r} in its job of that name"
    elif runtimes.job_of(runtime, step) is not job:
        lacks = f"no label {runtimes.ANCESTOR}={step} on its job {step!r}, without which the source would be dropped"
    if lacks:
        raise UnsupportedError(
            f"initializer.{role}: runtime {runtimes.name(runtime)!r} has {lacks}; use a runtime with that step, or "
            f"`initialize` into a volume first and give {PVC}<claim>/{role}"
        )


def _check_mount(role: str, step: str, runtime: Mapping[str, Any], laid: list[dict[str, Any]]) -> None:
    container = runtimes.container(runtimes.job(runtime, step) or {}, step) or {}
    mounts = [*(container.get("volumeMounts") or ()), *patching.mounts(laid, step, step)]
    if not any(mount.get("name") == INITIALIZER_VOLUME for mount in mounts):
        raise UnsupportedError(
            f"initializer.{role}: container {step!r} of runtime {runtimes.name(runtime)!r} mounts no volume "
            f"{INITIALIZER_VOLUME!r}, by which the nodes would get what it fetches; ask its administrator to add one"
        )
