"""Jobs as users write them, and the workload that Run:ai gets for each, as text that people review."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer_core import (
    Annotations,
    BuiltinTrainer,
    CustomTrainer,
    CustomTrainerContainer,
    DeleteAfter,
    Initializer,
    Labels,
    LoraConfig,
    RunaiBackendConfig,
    RunaiMasterSpec,
    RunaiSpec,
    SecretRef,
    Suspend,
    TorchTuneConfig,
    TrainerArgs,
    TrainerCommand,
    VolumeDatasetInitializer,
    VolumeModelInitializer,
    build,
    shipping,
)
from trainer_core.backends.runai import admission, manifest
from trainer_core.backends.runai.backend import RunaiBackend
from trainer_core.backends.runai.blueprints import BUILT_IN, Blueprint, of_template
from trainer_core.cluster import marks
from trainer_core.request import Owner, TrainJobRequest
from trainer_core.runai.spec import TrainingWorkloadSpec

GOLDEN = Path(__file__).with_name("golden")
NAMESPACE = "runai-team-vision"
_ELIDED = {marks.REQUEST: "<the request>", marks.FINGERPRINT: "<its fingerprint>", marks.RUNTIME: "<its runtime>"}
_TEMPLATE = TrainingWorkloadSpec(image="ghcr.io/team/train:1.0", backoff_limit=2, node_pools="a100")


def train(epochs: int) -> dict[str, float]:
    return {"accuracy": 1 - 1 / epochs}


def a_request(runtime: str | None = None, owner: Owner | None = None, **arguments: Any) -> TrainJobRequest:
    """The request that `TrainerClient.train` would submit as ``example``."""
    return build.request(backend=RunaiBackend, runtime=runtime, owner=owner, **arguments).named("example")


def a_template(name: str = "blueprint", **metadata: Any) -> Blueprint:
    """A template of the project, as the server has it."""
    raw = manifest.template(name, _TEMPLATE, NAMESPACE)
    return of_template({**raw, "metadata": {**raw["metadata"], **metadata}})


@dataclass(frozen=True)
class Example:
    """A job and what it is made from."""

    request: Callable[[], TrainJobRequest]
    blueprint: Blueprint = BUILT_IN["torch-distributed"]
    config: RunaiBackendConfig = field(default_factory=lambda: RunaiBackendConfig(project="team-vision"))
    attempt: int = 0

    def workload(self) -> dict[str, Any]:
        """What Run:ai gets."""
        request = self.request()
        admission.check(request, self.blueprint)
        return manifest.workload(request, self.blueprint, self.config, NAMESPACE, self.attempt)


def golden(name: str, workload: dict[str, Any]) -> str:
    """Return the reviewed text of an example; with TRAINJOB_UPDATE_GOLDEN set, write it first."""
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("TRAINJOB_UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(readable(workload), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def readable(workload: dict[str, Any]) -> str:
    """Return a workload as text, without what is long and changes with every change of what nodes run."""
    shown = copy.deepcopy(workload)
    annotations = shown["metadata"]["annotations"]
    annotations.update({key: text for key, text in _ELIDED.items() if key in annotations})
    for part in (shown["spec"], shown.get("masterSpec", {})):
        for name in ("command", "arguments"):
            if name in part:
                part[name]["value"] = _short(part[name]["value"])
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def _short(text: str) -> str:
    words = ["<the loader>" if word == shipping.LOADER else word for word in shlex.split(text)]
    return shlex.join("<the function>" if len(word) > 1000 else word for word in words)


EXAMPLES = {
    "function": Example(
        lambda: a_request(
            trainer=CustomTrainer(
                func=train,
                func_args={"epochs": 3},
                resources_per_node={"cpu": 4, "memory": "16Gi", "gpu": 2},
                env={"HF_TOKEN": SecretRef("hub", "token"), "GREETING": "it's $(HOME)"},
                packages_to_install=["datasets"],
            )
        )
    ),
    "function-in-python": Example(
        lambda: a_request(trainer=CustomTrainer(func=train, func_args={"epochs": 3})), BUILT_IN["python"]
    ),
    "several-nodes": Example(
        lambda: a_request(
            trainer=CustomTrainer(func=train, func_args={"epochs": 3}, num_nodes=3, resources_per_node={"gpu": 8}),
            options=[RunaiSpec(node_pools=["h100", "a100"]), RunaiMasterSpec(cpu=8)],
        )
    ),
    "mpi": Example(
        lambda: a_request(
            trainer=CustomTrainer(func=train, func_args={"epochs": 3}, num_nodes=2, resources_per_node={"gpu": 4})
        ),
        BUILT_IN["deepspeed-distributed"],
    ),
    "container": Example(
        lambda: a_request(
            trainer=CustomTrainerContainer(
                image="ghcr.io/team/train:1.0",
                resources_per_node={"mig-1g.5gb": 1, "rdma/ib": 1},
                env={"LR": "0.1"},
            ),
            options=[
                TrainerCommand(["python", "-m", "train"]),
                TrainerArgs(["--title", 'it\'s 100% "mine" $HOME\n']),
                Labels({"team": "vision"}),
                Annotations({"note": "any text"}),
                DeleteAfter(86400),
            ],
        ),
        config=RunaiBackendConfig(project="team-vision", cluster_id="c-1"),
    ),
    "recipe": Example(
        lambda: a_request(
            trainer=BuiltinTrainer(
                config=TorchTuneConfig(epochs=2, peft_config=LoraConfig(), resources_per_node={"gpu": 1})
            ),
            initializer=Initializer(
                dataset=VolumeDatasetInitializer("pvc://fetched/dataset"),
                model=VolumeModelInitializer("pvc://fetched/model"),
            ),
        ),
        BUILT_IN["torchtune-llama3.2-1b"],
    ),
    "recipe-on-four-gpus": Example(
        lambda: a_request(
            trainer=BuiltinTrainer(config=TorchTuneConfig(epochs=1, resources_per_node={"gpu": 4})),
            initializer=Initializer(model=VolumeModelInitializer("pvc://llama")),
        ),
        BUILT_IN["torchtune-qwen2.5-1.5b"],
    ),
    "direct-fields": Example(
        lambda: a_request(
            trainer=CustomTrainer(func=train, func_args={"epochs": 3}),
            options=[
                RunaiSpec(
                    gpu=0.5,
                    large_shm=True,
                    backoff_limit=3,
                    environment={"WANDB_API_KEY": SecretRef("wandb", "key")},
                    pvcs={"data": {"claim_name": "data", "existing_pvc": True, "path": "/data"}},
                    tolerations={"gpu": {"key": "gpu", "operator": "Exists"}},
                    extra={"gpuDevices": {"value": 1}},
                )
            ],
        )
    ),
    "template": Example(
        lambda: a_request("blueprint", trainer=CustomTrainer(func=train, func_args={"epochs": 3})), a_template()
    ),
    "template-as-it-is": Example(lambda: a_request("blueprint"), a_template()),
    "suspended": Example(
        lambda: a_request(
            owner=Owner(key="dag/run/task", slug="task"),
            trainer=CustomTrainerContainer(image="ghcr.io/team/train:1.0"),
            options=[Suspend()],
        ),
        attempt=2,
    ),
}
