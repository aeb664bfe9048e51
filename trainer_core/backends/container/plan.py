"""Renders the plan of a container job, and from it the calls that create its containers. Pure.

Names with the uid, and paths of copies, follow when a container is created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainer_core.backends.container import names, pod_template
from trainer_core.backends.container.job_journal import ContainerJob
from trainer_core.backends.container.paths import CACHE_PATH, CODE_PATH, DATA_PATHS, RESULT_PATH, TERMINATION_PATH
from trainer_core.base import resources
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.base.resources import check_process_count
from trainer_core.base.validation import check_reserved_env
from trainer_core.k8s import runtimes
from trainer_core.lifecycle.attempt_memory import apply_attempt_memory, get_attempt_memory
from trainer_core.lifecycle.restart_policy import get_attempt_restarts
from trainer_core.model import checkpoint_location
from trainer_core.model.config import ContainerBackendConfig
from trainer_core.model.request import TRACKING_SECRETS, InitializerSource, TrainerRequest, TrainJobRequest
from trainer_core.model.storage_schemes import check_scheme
from trainer_core.node import env
from trainer_core.packaging import argv_payload

#: Kinds of steps: copy a folder of this machine, fetch with an initializer image, train.
COPY, FETCH, NODE = "copy", "fetch", "node"
_WORKSPACE = "/workspace"
#: File with the credentials of a step. It is in the container's own layer, readable by its user only, and emptied when
#: the job has ended.
SECRETS_PATH = "/trainjob-secrets.json"
#: A petabyte: "-1" for no limit is refused by Docker, and without a size the limit of the engine applies.
_MAX_LOG_SIZE = "1000000g"
_NO_COMMAND = "the initializer image has no entry point and no command; build it from Trainer's, or set ENTRYPOINT"
#: Initializer images and mlflow read credentials from their environment, but `docker inspect` shows arguments and
#: environment of a container. This program reads the file into the environment and then becomes the step's program.
_LOAD_SECRETS = (
    f"import json, os, sys; os.environ.update(json.load(open({SECRETS_PATH!r}))); "
    f"sys.argv[1:] or sys.exit({_NO_COMMAND!r}); os.execvp(sys.argv[1], sys.argv[1:])"
)
#: The same for the node of a function. Tracking fails no training: without the file there is no tracking server.
_LOAD_TRACKING = (
    f"import json, os, sys; path = {SECRETS_PATH!r}; "
    "os.access(path, os.R_OK) and os.environ.update(json.load(open(path))); os.execvp(sys.argv[1], sys.argv[1:])"
)

#: Port of the rendezvous. Each job has its own network, so the port is always free.
_PORT = 29500
_VOLUME, _FILE = "pvc", "file"
SCHEMES = ("file", "hf", "s3", "pvc")
_UNSUPPORTED_POLICIES = {
    "mpi": "starts its processes with mpirun over ssh between nodes, which the container backend does not support",
    "flux": "needs Flux brokers, which an init container of the cluster installs",
}
_RESERVED_PREFIXES = ("PET_", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "DMLC_")


def render_plan(request: TrainJobRequest, runtime: Mapping[str, Any], config: ContainerBackendConfig) -> dict[str, Any]:
    _check_request(request)
    checkpoint_location.resolve_uri(request, config.checkpoints_uri)
    images = {"dataset": config.dataset_initializer_image, "model": config.model_initializer_image}
    steps = [_render_initializer(role, source, request, images[role]) for role, source in _list_fetched(request)]
    restarts = get_attempt_restarts(request)
    memory, request = get_attempt_memory(request), apply_attempt_memory(request)
    nodes = _render_nodes(request, request.work.trainer, runtime, config) if request.work.trainer else []
    if memory is not None:
        # Without swap: a process that needs more memory ends, instead of making the machine slow.
        nodes = [{**node, "memory_swap": node["memory"]} for node in nodes]
    return {
        "version": 1,
        "name": request.require_name(),
        "runtime": runtimes.get_name(runtime) if request.work.trainer else None,
        "steps": [*steps, *nodes],
        "pull_policy": config.pull_policy,
        "auto_remove": config.auto_remove,
        "initializer_timeout": config.initializer_timeout,
        "active_deadline_seconds": request.attempt_deadline_seconds,
        "delete_after_seconds": request.policy.delete_after_seconds,
        "suspend": request.policy.suspend,
        "grace_seconds": request.policy.checkpoints.grace if request.policy.checkpoints else None,
        **({"memory": asdict(memory)} if memory else {}),
        **({"restarts": restarts.to_dict()} if restarts else {}),
    }


def strip_commands(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan without the commands of functions. Labels store it, and each observation reads them."""
    steps = [{k: v for k, v in step.items() if k != "command" or not step.get("launch")} for step in plan["steps"]]
    return {**plan, "steps": steps}


def restore_commands(plan: Mapping[str, Any], request: TrainJobRequest) -> dict[str, Any]:
    """Return the plan as it was before `strip_commands`."""
    steps = [
        {**step, "command": _build_argv(request.work.trainer, step["launch"], step["env"])}
        if step.get("launch") and request.work.trainer
        else step
        for step in plan["steps"]
    ]
    return {**plan, "steps": steps}


def _check_request(request: TrainJobRequest) -> None:
    trainer = request.work.trainer
    if trainer is None and not request.initializer_sources():
        raise InvalidRequestError("the request has nothing to run; set a trainer, an initializer or both")
    request.check_options("container")
    if trainer is None:
        if request.work.patches:
            raise UnsupportedError("RuntimePatch changes a runtime, and a job without a trainer has none; remove it")
        return
    if trainer.kind == "builtin":
        raise UnsupportedError(
            "BuiltinTrainer: the Kubeflow Trainer controller creates the command of the recipe; use the kubernetes "
            "backend"
        )
    check_reserved_env(
        "trainer.env", trainer.env, lambda name: name.startswith(_RESERVED_PREFIXES), "the container backend"
    )


def _list_fetched(request: TrainJobRequest) -> Iterator[tuple[str, InitializerSource]]:
    """Yield the sources that have to be fetched, by role. A volume of the engine need not be fetched."""
    for role, source in request.initializer_sources():
        if not source.storage_uri.startswith(f"{_VOLUME}://"):
            yield role, source
        elif request.work.trainer is None:
            raise UnsupportedError(
                f"initializer.{role}: {_VOLUME}:// is already a volume and need not be fetched; use it in the job that "
                "reads it"
            )


def _render_initializer(role: str, source: InitializerSource, request: TrainJobRequest, image: str) -> dict[str, Any]:
    scheme = source.storage_uri.partition("://")[0]
    step = {"name": f"{role}-initializer", "role": role, "uri": source.storage_uri}
    if scheme == _FILE:
        if source.link and source.ignore_patterns:
            raise UnsupportedError(
                f"initializer.{role}: link=True mounts the complete folder, so ignore_patterns have no effect; remove "
                "one of them"
            )
        ignore = list(source.ignore_patterns or ())
        return {**step, "kind": COPY, "link": source.link, "ignore_patterns": ignore}
    check_scheme(role, source.storage_uri, SCHEMES, "on this backend")
    variables = {**source.env, "STORAGE_URI": source.storage_uri}
    if source.ignore_patterns is not None:
        variables["IGNORE_PATTERNS"] = ",".join(source.ignore_patterns)
    return {
        **step,
        "kind": FETCH,
        "image": image,
        "env": dict(sorted(variables.items())),
        "secrets": sorted(
            {key for key in request.context.literal_secrets if key.startswith(f"{role}.")}
            | {f"{role}.{name}" for name in source.secrets}
        ),
        "mounts": [{"type": "data", "target": _WORKSPACE}, {"type": "cache", "target": CACHE_PATH}],
    }


def _render_nodes(
    request: TrainJobRequest, trainer: TrainerRequest, runtime: Mapping[str, Any], config: ContainerBackendConfig
) -> list[dict[str, Any]]:
    policy = runtimes.get_ml_policy(runtime)
    if policy in _UNSUPPORTED_POLICIES:
        raise UnsupportedError(
            f"runtime {runtimes.get_name(runtime)!r} {_UNSUPPORTED_POLICIES[policy]}; use torch-distributed, or the "
            "kubernetes backend"
        )
    pod = pod_template.apply_patches(runtime, request.work.patches)
    container, settings = pod_template.get_node_container(pod), pod_template.get_container_settings(pod)
    requested = resources.normalize_resources(trainer.resources_per_node or {})
    settings.update(pod_template.get_limits(requested, container))
    num_nodes = trainer.num_nodes or runtimes.get_num_nodes(runtime)
    num_processes = _get_num_processes(trainer, policy, settings, runtime)
    check_process_count(num_nodes, num_processes)
    checkpoint_env, checkpoint_mounts = _render_checkpoints(request, config)
    variables = {
        **settings.pop("env"),
        **request.job_env,
        **trainer.literal_env,
        **_job_variables(request, trainer),
        **checkpoint_env,
        **request.stalled_env,
    }
    mounts = _deduplicate_mounts([*settings.pop("mounts"), *_render_data_mounts(request), *checkpoint_mounts])
    step = {
        "kind": NODE,
        "image": trainer.image or container.get("image"),
        **_render_command(trainer, container, policy, variables),
        **({"result_uri": trainer.result_uri} if trainer.result_uri else {}),
        **_list_secrets(request, trainer),
        **settings,
        "mounts": mounts,
    }
    job_name = request.require_name()
    nodes = []
    for rank in range(num_nodes):
        name = f"node-{rank}"
        rendezvous = _rendezvous_variables(policy, rank, num_nodes, num_processes, names.host_name(job_name, "node-0"))
        node_env = dict(sorted({**variables, **rendezvous}.items()))
        nodes.append({"name": name, "host": names.host_name(job_name, name), **step, "env": node_env})
    return nodes


def _rendezvous_variables(
    policy: str | None, rank: int, num_nodes: int, num_processes: int, master: str
) -> dict[str, str]:
    """Return the variables by which the nodes find each other; the same as the Kubeflow Trainer controller sets."""
    if policy == "torch":
        return {
            "PET_MASTER_ADDR": master,
            "PET_MASTER_PORT": str(_PORT),
            "PET_NNODES": str(num_nodes),
            "PET_NPROC_PER_NODE": str(num_processes),
            "PET_NODE_RANK": str(rank),
        }
    if policy == "jax":
        return {
            "JAX_NUM_PROCESSES": str(num_nodes),
            "JAX_PROCESS_ID": str(rank),
            "JAX_COORDINATOR_ADDRESS": f"{master}:{_PORT}",
        }
    if policy == "xgboost":
        return {
            "DMLC_TRACKER_URI": master,
            "DMLC_TRACKER_PORT": str(_PORT),
            "DMLC_TASK_ID": str(rank),
            "DMLC_NUM_WORKER": str(num_nodes * num_processes),
        }
    return {env.NODES: str(num_nodes), "RANK": str(rank), "WORLD_SIZE": str(num_nodes)}


def _get_num_processes(
    trainer: TrainerRequest, policy: str | None, settings: Mapping[str, Any], runtime: Mapping[str, Any]
) -> int:
    """One process for each GPU, else for torch one for each whole CPU, at least one: as Trainer does for ``auto``."""
    if policy != "torch" and (trainer.num_proc_per_node or 1) > 1:
        raise UnsupportedError(
            f"runtime {runtimes.get_name(runtime)!r} starts one process on each node, not num_proc_per_node="
            f"{trainer.num_proc_per_node}; use torch-distributed, or more nodes"
        )
    cpus = settings.get("nano_cpus", 0) // 10**9 if policy == "torch" else 0
    return trainer.num_proc_per_node or settings.get("gpus") or max(1, cpus)


def _job_variables(request: TrainJobRequest, trainer: TrainerRequest) -> dict[str, str]:
    result = {env.RESULT_URI: RESULT_PATH} if trainer.result_uri else {}
    return {env.NAME: request.require_name(), env.TERMINATION_LOG: TERMINATION_PATH, **result}


def _render_command(
    trainer: TrainerRequest, container: Mapping[str, Any], policy: str | None, checkpoint_env: Mapping[str, str]
) -> dict[str, Any]:
    """Return the command of a function, or command and arguments of an image. Without them the image's own are used."""
    if trainer.code is not None:
        launch = "torchrun" if policy == "torch" else "python"
        return {"launch": launch, "command": _build_argv(trainer, launch, checkpoint_env)}
    command = trainer.command if trainer.command is not None else container.get("command")
    args = trainer.args if trainer.args is not None else container.get("args")
    fields = {"command": command and list(command), "args": args and list(args)}
    return {key: value for key, value in fields.items() if value is not None}


def _list_secrets(request: TrainJobRequest, trainer: TrainerRequest) -> dict[str, list[str]]:
    """Return the names of a node's secrets, and of the variables that it gets only with the tracking server's."""
    given = {key for key in request.context.literal_secrets if key.startswith("trainer.")}
    own = given - TRACKING_SECRETS | {f"trainer.{name}" for name in trainer.secret_env}
    if trainer.code is None:
        if own:
            raise UnsupportedError(
                f"{', '.join(sorted(own))}: the container backend passes secrets to functions only; use a "
                "CustomTrainer with this image, or mount a file with the secret (RuntimePatch)"
            )
        return {}
    tracking = given & TRACKING_SECRETS
    if not (own or tracking):
        return {}
    return {"secrets": sorted(own | tracking), "tracking": sorted(request.tracking_env) if tracking else []}


def _build_argv(trainer: TrainerRequest, launch: str, node_env: Mapping[str, str]) -> list[str]:
    if trainer.code is None:
        raise InvalidRequestError("trainer.code: the recorded request of the job contains no function")
    launcher: Literal["torchrun", "python"] = "torchrun" if launch == "torchrun" else "python"
    code = trainer.code
    if code.project and code.project.file_uri:
        project = code.project.model_copy(update={"uri": f"file://{CODE_PATH}"})
        code = code.model_copy(update={"project": project})
    return argv_payload.render_argv(
        code,
        trainer.packages,
        trainer.pip_index_urls,
        launcher,
        processes=trainer.num_proc_per_node,
        s3="s3://" in f"{trainer.env} {node_env}",
        is_trial=env.OBJECTIVE in trainer.env,
        is_attended=env.STALLED in node_env,
    )


def _render_checkpoints(
    request: TrainJobRequest, config: ContainerBackendConfig
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the variables and the mount of the checkpoints: a volume of the engine, or a folder of this machine."""
    uri = checkpoint_location.resolve_uri(request, config.checkpoints_uri)
    if uri is None:
        return {}, []
    if checkpoint_location.is_bucket(uri):
        return checkpoint_location.build_variables(request, uri), []
    place = checkpoint_location.MOUNT_PATH
    volume, folder = checkpoint_location.split_uri(uri, (_VOLUME, _FILE))

    def to_path(uri: str, field: str) -> str:
        other, path = checkpoint_location.split_uri(uri, (_VOLUME, _FILE), field)
        if other != volume:
            raise UnsupportedError(f"Checkpoints {field}: {uri} is not on the same volume as {folder or volume!r}")
        if volume:
            return f"{place}/{path}"
        if f"{path}/".startswith(f"{folder}/"):
            return f"{place}{path.removeprefix(folder)}"
        raise UnsupportedError(f"Checkpoints {field}: {path} is not below the folder {folder}, the place of this job")

    kind, source = ("volume", volume) if volume else ("bind", folder)
    variables = checkpoint_location.build_variables(request, uri, to_path)
    return variables, [{"type": kind, "source": source, "target": place}]


def _render_data_mounts(request: TrainJobRequest) -> Iterator[dict[str, Any]]:
    """Yield the mounts with which the nodes read the data of the initializers."""
    sources = request.initializer_sources()
    if any(not source.storage_uri.startswith((f"{_FILE}://", f"{_VOLUME}://")) for _, source in sources):
        yield {"type": "data", "target": _WORKSPACE}
        yield {"type": "cache", "target": CACHE_PATH, "read_only": True}
    for role, source in sources:
        scheme, _, rest = source.storage_uri.partition("://")
        if scheme == _FILE:
            yield {"type": "copied", "role": role, "target": DATA_PATHS[role], "read_only": True}
        elif scheme == _VOLUME:
            volume, _, path = rest.partition("/")
            if path.strip("/") not in ("", role):
                raise UnsupportedError(
                    f"initializer.{role}: container engines can only mount complete volumes; use {_VOLUME}://{volume}, "
                    f"or {_VOLUME}://{volume}/{role} for a volume that `initialize` has filled"
                )
            target = _WORKSPACE if path.strip("/") else DATA_PATHS[role]
            yield {"type": "volume", "source": volume, "target": target, "read_only": True}


def _deduplicate_mounts(mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge equal mounts: dataset and model may be in the same volume."""
    by_target: dict[str, dict[str, Any]] = {}
    for mount in mounts:
        if by_target.setdefault(mount["target"], mount) != mount:
            raise UnsupportedError(f"two volumes are mounted at {mount['target']}; use another path for one of them")
    return list(by_target.values())


@dataclass(frozen=True)
class CreateInputs:
    """Values that are known only when a container is created."""

    #: Volume that passes data from the initializers to the nodes.
    data_volume: str
    #: Folder or file of this machine, by role.
    copied_paths: Mapping[str, str]
    #: Configuration of the image; used for steps with credentials only.
    image_config: Mapping[str, Any]
    #: Volume with the data that jobs share; None if the job does not use it.
    cache_volume: str | None = None


def build_create_request(job: ContainerJob, step: Mapping[str, Any], inputs: CreateInputs) -> dict[str, Any]:
    """Return the body of the call that creates the container of a step.

    ``{"name": "node-0", "image": "torch", "command": ["python", "train.py"], "memory": 2**30, ...}`` →
    ``{"Image": "torch", "Entrypoint": ["python", "train.py"], "Cmd": [], "HostConfig": {"Memory": 2**30, ...}, ...}``
    """
    host = step.get("host") or names.host_name(job.name, step["name"])
    network = names.network_name(job.uid)
    # What is in the file of the credentials is of no use without them.
    env = {name: value for name, value in (step.get("env") or {}).items() if name not in step.get("tracking", ())}
    variables = {**env, **_cache_variables(step, inputs)}
    mounts = step.get("mounts") or ()
    return {
        "Image": step["image"],
        "Hostname": host,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {
            **names.job_labels(job.namespace, job.name, job.uid),
            names.STEP_LABEL: step["name"],
            names.RUN_LABEL: str(job.run),
        },
        **_command_fields(step, inputs.image_config),
        **_without_none(User=step.get("user"), WorkingDir=step.get("working_dir")),
        "HostConfig": {
            "NetworkMode": network,
            # The default of the engine may be a log driver that keeps only the last lines, or none.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": _MAX_LOG_SIZE}},
            "Mounts": [mount for each in mounts for mount in _build_mounts(each, inputs)],
            "Tmpfs": {each["target"]: _tmpfs_options(each) for each in mounts if each["type"] == "tmpfs"},
            **_limit_fields(step),
        },
        "NetworkingConfig": {"EndpointsConfig": {network: {"Aliases": [host]}}},
    }


def _cache_variables(step: Mapping[str, Any], inputs: CreateInputs) -> dict[str, str]:
    """Return the variables that tell an initializer image of this project where the cache is. Others ignore them."""
    if step["kind"] != FETCH or not inputs.cache_volume:
        return {}
    role = step["role"]
    return {"TRAINJOB_INITIALIZE_CACHE": f"{CACHE_PATH}/{role}", "TRAINJOB_INITIALIZE_TARGET": DATA_PATHS[role]}


def _command_fields(step: Mapping[str, Any], image_config: Mapping[str, Any]) -> dict[str, Any]:
    """As in Kubernetes, a command replaces the entry point of the image and drops its arguments."""
    command, args = step.get("command"), step.get("args")
    if step["kind"] == FETCH and step.get("secrets"):
        image_command = [*_to_list(image_config.get("Entrypoint")), *_to_list(image_config.get("Cmd"))]
        return {"Entrypoint": ["python3", "-c", _LOAD_SECRETS], "Cmd": image_command}
    if command and step.get("secrets"):
        # A function: its command starts with the interpreter of the image.
        return {"Entrypoint": [command[0], "-c", _LOAD_TRACKING], "Cmd": [*command, *(args or ())]}
    if command:
        return {"Entrypoint": list(command), "Cmd": list(args or ())}
    return {"Cmd": list(args)} if args else {}


def _to_list(command: str | Sequence[str] | None) -> list[str]:
    return [command] if isinstance(command, str) else list(command or ())


def _build_mounts(mount: Mapping[str, Any], inputs: CreateInputs) -> list[dict[str, Any]]:
    kind, target = mount["type"], mount["target"]
    if kind == "tmpfs" or (kind == "cache" and not inputs.cache_volume):
        return []
    if kind == "copied":
        return [_build_bind(inputs.copied_paths[mount["role"]], target)]
    if kind == "bind":
        return [{**_build_bind(mount["source"], target), "ReadOnly": bool(mount.get("read_only"))}]
    sources = {"data": inputs.data_volume, "cache": inputs.cache_volume, "scratch": None}
    source = sources[kind] if kind in sources else mount["source"]
    source_field = {"Source": source} if source else {}
    return [{"Type": "volume", **source_field, "Target": target, "ReadOnly": bool(mount.get("read_only"))}]


def _build_bind(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}


def _tmpfs_options(mount: Mapping[str, Any]) -> str:
    return f"size={mount['size']}" if mount.get("size") else ""


def _limit_fields(step: Mapping[str, Any]) -> dict[str, Any]:
    gpus = step.get("gpus")
    return _without_none(
        Memory=step.get("memory"),
        MemorySwap=step.get("memory_swap"),
        NanoCpus=step.get("nano_cpus"),
        ShmSize=step.get("shm_size"),
        CapAdd=step.get("cap_add"),
        CapDrop=step.get("cap_drop"),
        DeviceRequests=[{"Driver": "nvidia", "Count": gpus, "Capabilities": [["gpu"]]}] if gpus else None,
    )


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
