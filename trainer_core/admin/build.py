"""Runtimes from parameters. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainer_core.admin.blueprint import Blueprint, Coscheduling, Gang, Initializer, Mpi, Storage, Volcano
from trainer_core.admin.models import MODELS
from trainer_core.admin.raw import API_VERSION, INITIALIZERS, VOLUME, replicated_jobs
from trainer_core.cluster.runtimes import ANCESTOR, FRAMEWORK
from trainer_core.options.scheduling import VOLCANO_QUEUE
from trainer_core.secrets import SecretRef

__all__ = ["KINDS", "deepspeed", "jax", "mlx", "mpi", "plain", "torch", "torchtune", "with_initializers", "xgboost"]

Manifest = dict[str, Any]

_IMAGES = "ghcr.io/kubeflow/trainer"
#: Images of Trainer 2.3's own runtimes.
_STOCK = {
    "torch": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime",
    "jax": "nvcr.io/nvidia/jax:25.10-py3",
    "xgboost": f"{_IMAGES}/xgboost-runtime",
    "deepspeed": f"{_IMAGES}/deepspeed-runtime",
    "mlx": f"{_IMAGES}/mlx-runtime",
    "torchtune": f"{_IMAGES}/torchtune-trainer",
}
_SSHD = {
    "command": ["/usr/sbin/sshd"],
    "args": ["-De", "-f", "/home/mpiuser/.sshd_config"],
    "readinessProbe": {"tcpSocket": {"port": 2222}, "initialDelaySeconds": 5},
}


def torch(blueprint: Blueprint) -> Manifest:
    """Build a runtime for PyTorch: Trainer sets the environment that torchrun reads."""
    return _one_job(blueprint, "torch", {"torch": {}})


def jax(blueprint: Blueprint) -> Manifest:
    """Build a runtime for JAX: Trainer tells every process of the others."""
    return _one_job(blueprint, "jax", {"jax": {}})


def xgboost(blueprint: Blueprint) -> Manifest:
    """Build a runtime for distributed XGBoost: Trainer tells every worker where the tracker is."""
    return _one_job(blueprint, "xgboost", {"xgboost": {}})


def plain(blueprint: Blueprint) -> Manifest:
    """Build a runtime whose nodes know nothing of each other.

    Raises:
        ValueError: It has no image.
    """
    return _one_job(blueprint, "plain", {})


def deepspeed(blueprint: Blueprint, settings: Mpi | None = None) -> Manifest:
    """Build a runtime for DeepSpeed, started by mpirun."""
    return mpi(blueprint, settings, "deepspeed")


def mlx(blueprint: Blueprint, settings: Mpi | None = None) -> Manifest:
    """Build a runtime for MLX, started by mpirun."""
    return mpi(blueprint, settings, "mlx")


def mpi(blueprint: Blueprint, settings: Mpi | None = None, framework: str = "mpi") -> Manifest:
    """Build a runtime whose launcher starts processes on the other nodes with mpirun.

    Args:
        blueprint: Its parameters; command, arguments and environment are the launcher's. The image must have an
            SSH server that is configured by ``/home/mpiuser/.sshd_config`` and listens on port 2222.
        settings: How the nodes find each other.
        framework: What it is for.

    Raises:
        ValueError: It has no image, and there is none for the framework.
    """
    settings = settings or Mpi()
    policy = {
        "numProcPerNode": settings.procs_per_node,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": settings.ssh_path,
        "runLauncherAsNode": settings.launcher_as_node,
    }
    user = {"securityContext": {"runAsUser": settings.user}}
    group = {"securityContext": {"fsGroup": settings.user}}
    base = _container(blueprint, framework)
    server = {key: base[key] for key in ("name", "image", "resources", "volumeMounts") if key in base}
    node = _job("node", {**group, **_pod(blueprint), "containers": [{**server, **user, **copy.deepcopy(_SSHD)}]})
    launcher = _job("launcher", {**group, **_pod(blueprint), "containers": [{**base, **user}]}, "trainer")
    launcher["dependsOn"] = [{"name": "node", "status": "Ready"}]
    runtime = _runtime(blueprint, framework, {"mpi": policy}, [node, launcher])
    runtime["spec"]["template"]["spec"].update(
        network={"publishNotReadyAddresses": True},
        # The nodes' SSH servers run for ever: the launcher's end is the job's.
        successPolicy={"operator": "All", "targetReplicatedJobs": ["launcher"]},
    )
    return runtime


def torchtune(
    blueprint: Blueprint,
    dataset: Initializer | None = None,
    model: Initializer | None = None,
    storage: Storage | None = None,
) -> Manifest:
    """Build a runtime that fine-tunes a language model with torchtune, after fetching dataset and model.

    Args:
        blueprint: Its parameters. The name must be ``torchtune-`` and a model that Trainer knows, such as
            ``torchtune-llama3.2-1b``: Trainer reads the model from the name.
        dataset: What to fetch; ``hf://tatsu-lab/alpaca`` if not given.
        model: What to fetch; the model of the name if not given.
        storage: Where to keep both.

    Raises:
        ValueError: The name is not one Trainer finds a model in.
    """
    if blueprint.name not in MODELS:
        known = ", ".join(MODELS)
        raise ValueError(f"runtime {blueprint.name!r}: Trainer reads the model from the name; known are {known}")
    known_model = MODELS[blueprint.name]
    command = blueprint.command or known_model.command()
    return with_initializers(
        _one_job(replace(blueprint, command=command), "torchtune", {"torch": {}}),
        dataset=dataset or Initializer("hf://tatsu-lab/alpaca"),
        model=model or Initializer(known_model.uri),
        storage=storage,
    )


def with_initializers(
    runtime: Mapping[str, Any],
    *,
    dataset: Initializer | None = None,
    model: Initializer | None = None,
    storage: Storage | None = None,
) -> Manifest:
    """Return the runtime with steps that fetch first, and a volume at ``/workspace`` that all steps share.

    Args:
        runtime: What one of the builders has made.
        dataset: The step that fetches to ``/workspace/dataset``; None for none.
        model: The step that fetches to ``/workspace/model``; None for none.
        storage: The volume; a new claim of 20Gi with each TrainJob if not given.

    Raises:
        ValueError: Neither a dataset nor a model, or the runtime has initializers already.
    """
    given = {name: each for name, each in zip(INITIALIZERS, (dataset, model), strict=True) if each is not None}
    taken = [job.name for job in replicated_jobs(runtime) if job.name in INITIALIZERS]
    if not given or taken:
        raise ValueError(f"the runtime has {', '.join(taken)} already" if taken else "give dataset, model, or both")
    result = copy.deepcopy(dict(runtime))
    template = result["spec"]["template"]["spec"]
    nodes = template["replicatedJobs"]
    # The first that trains waits; a launcher waits for it in turn.
    nodes[0]["dependsOn"] = [{"name": name, "status": "Complete"} for name in given]
    for container in (each for job in nodes for each in job["template"]["spec"]["template"]["spec"]["containers"]):
        container.setdefault("volumeMounts", []).append(_mount())
    template["replicatedJobs"] = [*(_initializer(name, each) for name, each in given.items()), *nodes]
    _add_storage(template, storage or Storage())
    return result


#: The builders by the kind of runtime they make.
KINDS: Mapping[str, Callable[[Blueprint], Manifest]] = {
    "torch": torch,
    "jax": jax,
    "xgboost": xgboost,
    "plain": plain,
    "mpi": mpi,
    "deepspeed": deepspeed,
    "mlx": mlx,
    "torchtune": torchtune,
}


def _one_job(blueprint: Blueprint, framework: str, policy: Manifest) -> Manifest:
    pod = {**_pod(blueprint), "containers": [_container(blueprint, framework)]}
    return _runtime(blueprint, framework, policy, [_job("node", pod, "trainer")])


def _runtime(blueprint: Blueprint, framework: str, policy: Manifest, jobs: list[Manifest]) -> Manifest:
    labels = {FRAMEWORK: framework, **blueprint.labels}
    place = {"namespace": blueprint.namespace} if blueprint.namespace else {}
    gang = blueprint.gang
    queue = (
        {"metadata": {"annotations": {VOLCANO_QUEUE: gang.queue}}} if isinstance(gang, Volcano) and gang.queue else {}
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRuntime" if blueprint.namespace else "ClusterTrainingRuntime",
        "metadata": {"name": blueprint.name, **place, "labels": labels},
        "spec": {
            "mlPolicy": {"numNodes": blueprint.num_nodes, **policy},
            **({"podGroupPolicy": _gang(gang)} if gang else {}),
            "template": {**queue, "spec": {"replicatedJobs": jobs}},
        },
    }


def _gang(gang: Gang) -> Manifest:
    if isinstance(gang, Coscheduling):
        return {"coscheduling": {"scheduleTimeoutSeconds": gang.timeout_seconds}}
    if gang.topology is None:
        return {"volcano": {}}
    return {"volcano": {"networkTopology": {"mode": gang.topology, "highestTierAllowed": gang.highest_tier}}}


def _job(name: str, pod: Manifest, ancestor: str | None = None) -> Manifest:
    labels = {"metadata": {"labels": {ANCESTOR: ancestor}}} if ancestor else {}
    return {"name": name, "template": {**labels, "spec": {"template": {"spec": pod}}}}


def _pod(blueprint: Blueprint) -> Manifest:
    pod = blueprint.pod
    fields = {
        "serviceAccountName": pod.service_account,
        "nodeSelector": dict(pod.node_selector),
        "tolerations": _plain(pod.tolerations),
        "volumes": _plain(pod.volumes),
    }
    return {name: value for name, value in fields.items() if value}


def _container(blueprint: Blueprint, framework: str) -> Manifest:
    """The container that trains; what the blueprint leaves out is left out."""
    image = blueprint.image or _STOCK.get(framework)
    if image is None:
        raise ValueError(f"runtime {blueprint.name!r}: give an image; Trainer has none of its own for {framework!r}")
    fields = {
        "command": list(blueprint.command),
        "args": list(blueprint.args),
        "env": [_env(name, value) for name, value in blueprint.env.items()],
        "resources": {"limits": blueprint.limits} if blueprint.resources else {},
        "volumeMounts": _plain(blueprint.pod.mounts),
    }
    return {"name": "node", "image": image, **{name: value for name, value in fields.items() if value}}


def _env(name: str, value: str | SecretRef) -> Manifest:
    if isinstance(value, SecretRef):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": value.name, "key": value.key}}}
    return {"name": name, "value": value}


def _initializer(name: str, initializer: Initializer) -> Manifest:
    fields = {
        "env": [_env("STORAGE_URI", initializer.uri)] if initializer.uri else [],
        "envFrom": [{"secretRef": {"name": initializer.secret}}] if initializer.secret else [],
    }
    image = initializer.image or f"{_IMAGES}/{name}"
    given = {key: value for key, value in fields.items() if value}
    account = {"serviceAccountName": initializer.service_account} if initializer.service_account else {}
    container = {"name": name, "image": image, **given, "volumeMounts": [_mount()]}
    return _job(name, {**account, "containers": [container]}, name)


def _mount() -> Manifest:
    return {"name": VOLUME, "mountPath": "/workspace"}


def _add_storage(template: Manifest, storage: Storage) -> None:
    if storage.claim:
        for job in template["replicatedJobs"]:
            volume = {"name": VOLUME, "persistentVolumeClaim": {"claimName": storage.claim}}
            job["template"]["spec"]["template"]["spec"].setdefault("volumes", []).append(volume)
        return
    spec: Manifest = {"accessModes": [storage.access_mode], "resources": {"requests": {"storage": storage.size}}}
    if storage.storage_class:
        spec["storageClassName"] = storage.storage_class
    template["volumeClaimPolicies"] = [{"templates": [{"metadata": {"name": VOLUME}, "spec": spec}]}]


def _plain(values: Sequence[Mapping[str, Any]]) -> list[Manifest]:
    return [copy.deepcopy(dict(value)) for value in values]
