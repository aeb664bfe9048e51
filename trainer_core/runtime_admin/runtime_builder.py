"""Build runtime manifests from parameters. Pure functions.

1. The dataclasses of parameters check their values.
2. A builder of `BUILDERS` joins an ML policy, one or two replicated jobs and their pods. `build_torch_runtime` of
   ``RuntimeParameters("fast", num_nodes=2)`` has ``mlPolicy: {numNodes: 2, torch: {}}`` and the job ``node``.
3. `add_initializers` adds the jobs that fetch data, before the nodes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainer_core.base import naming, resources, validation
from trainer_core.base.secrets import SecretRef, redact
from trainer_core.k8s.runtimes import ANCESTOR_LABEL, FRAMEWORK_LABEL
from trainer_core.model import torchtune
from trainer_core.model.request import VOLCANO_QUEUE
from trainer_core.runtime_admin.accessors import API_VERSION, INITIALIZERS, VOLUME, list_replicated_jobs

Manifest = dict[str, Any]

_IMAGES = "ghcr.io/kubeflow/trainer"
#: Images of the runtimes that Trainer 2.3 installs.
_DEFAULT_IMAGES = {
    "torch": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime",
    "jax": "nvcr.io/nvidia/jax:25.10-py3",
    "xgboost": f"{_IMAGES}/xgboost-runtime",
    "deepspeed": f"{_IMAGES}/deepspeed-runtime",
    "mlx": f"{_IMAGES}/mlx-runtime",
    "torchtune": f"{_IMAGES}/torchtune-trainer",
    "trl": "huggingface/trl:1.16.0",
}
_SSHD = {
    "command": ["/usr/sbin/sshd"],
    "args": ["-De", "-f", "/home/mpiuser/.sshd_config"],
    "readinessProbe": {"tcpSocket": {"port": 2222}, "initialDelaySeconds": 5},
}
#: Restarts of all nodes together after one of them has failed or was removed, where nodes wait for each other.
_MAX_RESTARTS = 3
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod", "ReadOnlyMany")


@dataclass(frozen=True)
class Coscheduling:
    """Gang scheduling with the coscheduling plugin (``spec.podGroupPolicy.coscheduling``)."""

    timeout_seconds: int = 60

    def __post_init__(self) -> None:
        validation.check_count("timeout_seconds", self.timeout_seconds)


@dataclass(frozen=True)
class Volcano:
    """Gang scheduling with Volcano (``spec.podGroupPolicy.volcano``)."""

    queue: str | None = None
    topology: str | None = None
    highest_tier: int = 1

    def __post_init__(self) -> None:
        if self.queue is not None:
            validation.check_string("queue", self.queue, "research")
        if self.topology is not None:
            validation.check_one_of("topology", self.topology, ("hard", "soft"))
        validation.check_count("highest_tier", self.highest_tier)


PodGroupPolicy = Coscheduling | Volcano


@dataclass(frozen=True)
class PodParameters:
    """Fields of the pods of the training nodes, spelled as in a Kubernetes pod."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    service_account: str | None = None
    volumes: Sequence[Mapping[str, Any]] = ()
    mounts: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        validation.check_labels("node_selector", self.node_selector)
        if self.service_account is not None and not naming.is_object_name(self.service_account):
            raise ValueError(f"service_account must be a Kubernetes object name, got {redact(self.service_account)}")
        unknown = {mount.get("name") for mount in self.mounts} - {volume.get("name") for volume in self.volumes}
        if unknown:
            raise ValueError(
                f"mounts refer to {', '.join(map(repr, unknown))}, which is not in volumes; add the volume"
            )


@dataclass(frozen=True)
class RuntimeParameters:
    """Parameters of a runtime.

    `restarts` limits the restarts of all nodes together after one has failed (``failurePolicy.maxRestarts``), and none
    restarts alone: 0 leaves them to the TrainJob. None for 3 with torch, jax and xgboost, and the defaults of Jobs
    otherwise.
    """

    name: str
    image: str | None = None
    num_nodes: int = 1
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str | SecretRef] = field(default_factory=dict)
    resources: Mapping[str, str | int | float] = field(default_factory=dict)
    pod: PodParameters = field(default_factory=PodParameters)
    gang: PodGroupPolicy | None = None
    restarts: int | None = None

    def __post_init__(self) -> None:
        if not naming.is_object_name(self.name):
            raise ValueError(
                f"runtime name {redact(self.name)} must be at most 253 lower-case letters, digits, '-' and '.'"
            )
        if self.namespace is not None and not naming.is_namespace(self.namespace):
            raise ValueError(
                f"namespace {redact(self.namespace)} must be at most 63 lower-case letters, digits and '-'"
            )
        if self.image is not None:
            validation.check_string("image", self.image, "pytorch/pytorch:2.13.0")
        validation.check_count("num_nodes", self.num_nodes)
        if self.restarts is not None:
            validation.check_count("restarts", self.restarts, minimum=0)
        validation.check_labels("labels", self.labels)
        validation.check_strings("command", self.command, "torchrun")
        validation.check_strings("args", self.args, "train.py")
        validation.check_env("env", self.env)
        resources.check_resources("resources", self.resources)

    @property
    def limits(self) -> dict[str, str]:
        """Resources by their full Kubernetes names."""
        return resources.normalize_resources(self.resources)


@dataclass(frozen=True)
class MpiParameters:
    """Parameters of an MPI runtime (``spec.mlPolicy.mpi``)."""

    procs_per_node: int = 1
    ssh_path: str = "/home/mpiuser/.ssh"
    user: int = 1000
    launcher_as_node: bool = True

    def __post_init__(self) -> None:
        validation.check_count("procs_per_node", self.procs_per_node)
        validation.check_count("user", self.user, minimum=0)
        if not self.ssh_path.startswith("/"):
            raise ValueError(
                f"ssh_path must be an absolute path such as '/home/mpiuser/.ssh', got {redact(self.ssh_path)}"
            )


@dataclass(frozen=True)
class InitializerParameters:
    """Parameters of an initializer job of a runtime."""

    uri: str | None = None
    image: str | None = None
    secret: str | None = None
    service_account: str | None = None

    def __post_init__(self) -> None:
        if self.uri is not None and not _URI.fullmatch(self.uri):
            raise ValueError(f"uri must be a URI such as 'hf://tatsu-lab/alpaca', got {redact(self.uri)}")
        for field_name in ("secret", "service_account"):
            value = getattr(self, field_name)
            if value is not None and not naming.is_object_name(value):
                raise ValueError(f"{field_name} must be a Kubernetes object name, got {redact(value)}")


@dataclass(frozen=True)
class StorageParameters:
    """The volume that initializers write and training nodes read."""

    claim: str | None = None
    size: str = "20Gi"
    access_mode: str = "ReadWriteOnce"
    storage_class: str | None = None

    def __post_init__(self) -> None:
        resources.parse_quantity(self.size)
        validation.check_one_of("access_mode", self.access_mode, _ACCESS_MODES)
        if self.claim is not None and not naming.is_object_name(self.claim):
            raise ValueError(f"claim must be the name of a PersistentVolumeClaim, got {redact(self.claim)}")


def build_torch_runtime(parameters: RuntimeParameters) -> Manifest:
    """Build a PyTorch runtime: Trainer sets the environment variables of torchrun."""
    return _build_single_job_runtime(parameters, "torch", {"torch": {}})


def build_jax_runtime(parameters: RuntimeParameters) -> Manifest:
    """Build a JAX runtime: Trainer sets the environment variables of the JAX coordinator."""
    return _build_single_job_runtime(parameters, "jax", {"jax": {}})


def build_xgboost_runtime(parameters: RuntimeParameters) -> Manifest:
    """Build a distributed XGBoost runtime: Trainer sets the environment variables of the tracker."""
    return _build_single_job_runtime(parameters, "xgboost", {"xgboost": {}})


def build_plain_runtime(parameters: RuntimeParameters) -> Manifest:
    """Build a runtime without an ML policy: its nodes are independent."""
    return _build_single_job_runtime(parameters, "plain", {})


def build_deepspeed_runtime(parameters: RuntimeParameters, mpi: MpiParameters | None = None) -> Manifest:
    """Build a DeepSpeed runtime that starts with mpirun."""
    return build_mpi_runtime(parameters, mpi, "deepspeed")


def build_mlx_runtime(parameters: RuntimeParameters, mpi: MpiParameters | None = None) -> Manifest:
    """Build an MLX runtime that starts with mpirun."""
    return build_mpi_runtime(parameters, mpi, "mlx")


def build_mpi_runtime(
    parameters: RuntimeParameters, mpi: MpiParameters | None = None, framework: str = "mpi"
) -> Manifest:
    """Build a runtime whose launcher starts the processes of all nodes with mpirun."""
    mpi = mpi or MpiParameters()
    policy = {
        "numProcPerNode": mpi.procs_per_node,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": mpi.ssh_path,
        "runLauncherAsNode": mpi.launcher_as_node,
    }
    user = {"securityContext": {"runAsUser": mpi.user}}
    group = {"securityContext": {"fsGroup": mpi.user}}
    base = _build_container(parameters, framework)
    server = {key: base[key] for key in ("name", "image", "resources", "volumeMounts") if key in base}
    node = _build_job(
        "node", {**group, **_build_pod(parameters), "containers": [{**server, **user, **copy.deepcopy(_SSHD)}]}
    )
    launcher = _build_job("launcher", {**group, **_build_pod(parameters), "containers": [{**base, **user}]}, "trainer")
    launcher["dependsOn"] = [{"name": "node", "status": "Ready"}]
    runtime = _build_runtime(parameters, framework, {"mpi": policy}, [node, launcher])
    runtime["spec"]["template"]["spec"].update(
        network={"publishNotReadyAddresses": True},
        # The SSH servers of the nodes never exit: the job is complete when the launcher is.
        successPolicy={"operator": "All", "targetReplicatedJobs": ["launcher"]},
    )
    return runtime


def build_torchtune_runtime(
    parameters: RuntimeParameters,
    dataset: InitializerParameters | None = None,
    model: InitializerParameters | None = None,
    storage: StorageParameters | None = None,
) -> Manifest:
    """Build a runtime that fetches a dataset and a language model, and fine-tunes the model with torchtune."""
    if parameters.name not in torchtune.MODELS:
        known = ", ".join(torchtune.MODELS)
        raise ValueError(
            f"runtime {redact(parameters.name)}: Trainer reads the model from the name; use one of {known}"
        )
    known_model = torchtune.MODELS[parameters.name]
    # Trainer replaces the recipe, and appends the arguments of the TrainJob.
    recipe = ("--rdzv_endpoint=localhost:29500", "full_finetune_distributed", "--config", f"{known_model.config}_full")
    command = parameters.command or [*torchtune.TorchTuneConfig.command, *recipe, *known_model.args]
    return add_initializers(
        _build_single_job_runtime(replace(parameters, command=command), "torchtune", {"torch": {}}),
        dataset=dataset or InitializerParameters("hf://tatsu-lab/alpaca"),
        model=model or InitializerParameters(known_model.uri),
        storage=storage,
    )


def build_trl_runtime(
    parameters: RuntimeParameters,
    dataset: InitializerParameters | None = None,
    model: InitializerParameters | None = None,
    storage: StorageParameters | None = None,
) -> Manifest:
    """Build a runtime that fetches a dataset and a language model, and trains the model with TRL."""
    command = parameters.command or ("torchrun", "-m", "trl.scripts.sft")
    return add_initializers(
        _build_single_job_runtime(replace(parameters, command=command), "trl", {"torch": {}}),
        dataset=dataset or InitializerParameters("hf://trl-lib/Capybara"),
        model=model or InitializerParameters("hf://Qwen/Qwen2.5-0.5B-Instruct"),
        storage=storage,
    )


def add_initializers(
    runtime: Mapping[str, Any],
    *,
    dataset: InitializerParameters | None = None,
    model: InitializerParameters | None = None,
    storage: StorageParameters | None = None,
) -> Manifest:
    """Return the runtime with initializer jobs, and a volume at ``/workspace`` that all jobs share."""
    existing = [job.name for job in list_replicated_jobs(runtime) if job.name in INITIALIZERS]
    if existing:
        raise ValueError(f"the runtime already has {', '.join(existing)}")
    initializers = {name: each for name, each in zip(INITIALIZERS, (dataset, model), strict=True) if each is not None}
    if not initializers:
        raise ValueError("pass dataset, model or both")
    result = copy.deepcopy(dict(runtime))
    template = result["spec"]["template"]["spec"]
    nodes = template["replicatedJobs"]
    # The first training job waits for the initializers; a launcher depends on that job.
    nodes[0]["dependsOn"] = [{"name": name, "status": "Complete"} for name in initializers]
    for job in nodes:
        for container in job["template"]["spec"]["template"]["spec"]["containers"]:
            container.setdefault("volumeMounts", []).append(_build_mount())
    template["replicatedJobs"] = [_build_initializer(name, each) for name, each in initializers.items()] + nodes
    _add_storage(template, storage or StorageParameters())
    return result


#: Builder functions by framework; those that fetch a dataset and a model take their parameters, too.
WITH_INITIALIZERS = ("torchtune", "trl")
BUILDERS: Mapping[str, Callable[..., Manifest]] = {
    "torch": build_torch_runtime,
    "jax": build_jax_runtime,
    "xgboost": build_xgboost_runtime,
    "plain": build_plain_runtime,
    "mpi": build_mpi_runtime,
    "deepspeed": build_deepspeed_runtime,
    "mlx": build_mlx_runtime,
    "torchtune": build_torchtune_runtime,
    "trl": build_trl_runtime,
}


def _build_single_job_runtime(parameters: RuntimeParameters, framework: str, policy: Manifest) -> Manifest:
    pod = {**_build_pod(parameters), "containers": [_build_container(parameters, framework)]}
    job = _build_job("node", pod, "trainer")
    runtime = _build_runtime(parameters, framework, policy, [job])
    if policy and parameters.restarts is None:
        # A node that restarts alone, or while its pod is still terminating, may wait for one that waits for it.
        job["template"]["spec"].update(backoffLimit=0, podReplacementPolicy="Failed")
        runtime["spec"]["template"]["spec"]["failurePolicy"] = {"maxRestarts": _MAX_RESTARTS}
    return runtime


def _build_runtime(parameters: RuntimeParameters, framework: str, policy: Manifest, jobs: list[Manifest]) -> Manifest:
    labels = {FRAMEWORK_LABEL: framework, **parameters.labels}
    place = {"namespace": parameters.namespace} if parameters.namespace else {}
    gang = parameters.gang
    template: Manifest = {"replicatedJobs": jobs}
    if parameters.restarts is not None:
        template = {"failurePolicy": {"maxRestarts": parameters.restarts}, **template}
        for job in jobs:
            job["template"]["spec"].update(backoffLimit=0, podReplacementPolicy="Failed")
            job["template"]["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    queue = (
        {"metadata": {"annotations": {VOLCANO_QUEUE: gang.queue}}} if isinstance(gang, Volcano) and gang.queue else {}
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRuntime" if parameters.namespace else "ClusterTrainingRuntime",
        "metadata": {"name": parameters.name, **place, "labels": labels},
        "spec": {
            "mlPolicy": {"numNodes": parameters.num_nodes, **policy},
            **({"podGroupPolicy": _build_pod_group_policy(gang)} if gang else {}),
            "template": {**queue, "spec": template},
        },
    }


def _build_pod_group_policy(gang: PodGroupPolicy) -> Manifest:
    if isinstance(gang, Coscheduling):
        return {"coscheduling": {"scheduleTimeoutSeconds": gang.timeout_seconds}}
    if gang.topology is None:
        return {"volcano": {}}
    return {"volcano": {"networkTopology": {"mode": gang.topology, "highestTierAllowed": gang.highest_tier}}}


def _build_job(name: str, pod: Manifest, ancestor: str | None = None) -> Manifest:
    labels = {"metadata": {"labels": {ANCESTOR_LABEL: ancestor}}} if ancestor else {}
    return {"name": name, "template": {**labels, "spec": {"template": {"spec": pod}}}}


def _build_pod(parameters: RuntimeParameters) -> Manifest:
    pod = parameters.pod
    fields = {
        "serviceAccountName": pod.service_account,
        "nodeSelector": dict(pod.node_selector),
        "tolerations": _copy_items(pod.tolerations),
        "volumes": _copy_items(pod.volumes),
    }
    return {name: value for name, value in fields.items() if value}


def _build_container(parameters: RuntimeParameters, framework: str) -> Manifest:
    """Return the training container, without empty fields."""
    image = parameters.image or _DEFAULT_IMAGES.get(framework)
    if image is None:
        raise ValueError(
            f"runtime {redact(parameters.name)}: image is missing; set it, because Trainer has no image for "
            f"{redact(framework)}"
        )
    fields = {
        "command": list(parameters.command),
        "args": list(parameters.args),
        "env": [_build_env(name, value) for name, value in parameters.env.items()],
        "resources": {"limits": parameters.limits} if parameters.resources else {},
        "volumeMounts": _copy_items(parameters.pod.mounts),
    }
    return {"name": "node", "image": image, **{name: value for name, value in fields.items() if value}}


def _build_env(name: str, value: str | SecretRef) -> Manifest:
    if isinstance(value, SecretRef):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": value.name, "key": value.key}}}
    return {"name": name, "value": value}


def _build_initializer(name: str, initializer: InitializerParameters) -> Manifest:
    fields = {
        "env": [_build_env("STORAGE_URI", initializer.uri)] if initializer.uri else [],
        "envFrom": [{"secretRef": {"name": initializer.secret}}] if initializer.secret else [],
    }
    image = initializer.image or f"{_IMAGES}/{name}"
    present = {key: value for key, value in fields.items() if value}
    account = {"serviceAccountName": initializer.service_account} if initializer.service_account else {}
    container = {"name": name, "image": image, **present, "volumeMounts": [_build_mount()]}
    return _build_job(name, {**account, "containers": [container]}, name)


def _build_mount() -> Manifest:
    return {"name": VOLUME, "mountPath": "/workspace"}


def _add_storage(template: Manifest, storage: StorageParameters) -> None:
    if storage.claim:
        for job in template["replicatedJobs"]:
            volume = {"name": VOLUME, "persistentVolumeClaim": {"claimName": storage.claim}}
            job["template"]["spec"]["template"]["spec"].setdefault("volumes", []).append(volume)
        return
    spec: Manifest = {"accessModes": [storage.access_mode], "resources": {"requests": {"storage": storage.size}}}
    if storage.storage_class:
        spec["storageClassName"] = storage.storage_class
    template["volumeClaimPolicies"] = [{"templates": [{"metadata": {"name": VOLUME}, "spec": spec}]}]


def _copy_items(values: Sequence[Mapping[str, Any]]) -> list[Manifest]:
    return [copy.deepcopy(dict(value)) for value in values]
