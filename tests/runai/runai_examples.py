"""Example requests, and the golden files of the workloads that the Run:ai backend renders for them."""

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
)
from trainer_core.backends.runai import manifest, validation
from trainer_core.backends.runai.backend import RunaiBackend
from trainer_core.backends.runai.runtime_templates import BUILT_IN_TEMPLATES, RuntimeTemplate, parse_template
from trainer_core.backends.runai.workload import TrainingWorkloadSpec
from trainer_core.definition import request_builder
from trainer_core.k8s import labels
from trainer_core.model.request import Owner, TrainJobRequest
from trainer_core.packaging import argv_payload

GOLDEN = Path(__file__).with_name("golden")
NAMESPACE = "runai-team-vision"
_ELISIONS = {labels.REQUEST: "<the request>", labels.FINGERPRINT: "<its fingerprint>", labels.RUNTIME: "<its runtime>"}
_TEMPLATE = TrainingWorkloadSpec(image="ghcr.io/team/train:1.0", backoff_limit=2, node_pools="a100")


def train(epochs: int) -> dict[str, float]:
    return {"accuracy": 1 - 1 / epochs}


def build_request(runtime: str | None = None, owner: Owner | None = None, **arguments: Any) -> TrainJobRequest:
    """Return the request that `TrainerClient.train` would submit as ``example``."""
    return request_builder.build_request(backend=RunaiBackend, runtime=runtime, owner=owner, **arguments).with_name(
        "example"
    )


def build_template(name: str = "blueprint", **metadata: Any) -> RuntimeTemplate:
    """Return a template of the project as parsed from the server."""
    raw = manifest.render_template(name, _TEMPLATE, NAMESPACE)
    return parse_template({**raw, "metadata": {**raw["metadata"], **metadata}})


@dataclass(frozen=True)
class Example:
    """A request and its runtime."""

    request: Callable[[], TrainJobRequest]
    template: RuntimeTemplate = BUILT_IN_TEMPLATES["torch-distributed"]
    config: RunaiBackendConfig = field(default_factory=lambda: RunaiBackendConfig(project="team-vision"))
    attempt: int = 0

    def render(self) -> dict[str, Any]:
        request = self.request()
        validation.check_request(request, self.template)
        return manifest.render_workload(request, self.template, self.config, NAMESPACE, self.attempt)


def read_golden(name: str, workload: dict[str, Any]) -> str:
    """Return the golden file of an example; with TRAINJOB_UPDATE_GOLDEN set, write it first."""
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("TRAINJOB_UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(to_readable_yaml(workload), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def to_readable_yaml(workload: dict[str, Any]) -> str:
    """Return a workload as YAML, without long parts that change with every change of the node programs."""
    elided = copy.deepcopy(workload)
    annotations = elided["metadata"]["annotations"]
    annotations.update({key: text for key, text in _ELISIONS.items() if key in annotations})
    for part in (elided["spec"], elided.get("masterSpec", {})):
        for name in ("command", "arguments"):
            if name in part:
                part[name]["value"] = _elide_payload(part[name]["value"])
    return yaml.safe_dump(elided, sort_keys=False, allow_unicode=True)


def _elide_payload(text: str) -> str:
    words = ["<the unpacker>" if word == argv_payload.UNPACKER else word for word in shlex.split(text)]
    return shlex.join("<the function>" if len(word) > 1000 else word for word in words)


EXAMPLES = {
    "function": Example(
        lambda: build_request(
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
        lambda: build_request(trainer=CustomTrainer(func=train, func_args={"epochs": 3})), BUILT_IN_TEMPLATES["python"]
    ),
    "several-nodes": Example(
        lambda: build_request(
            trainer=CustomTrainer(func=train, func_args={"epochs": 3}, num_nodes=3, resources_per_node={"gpu": 8}),
            options=[RunaiSpec(node_pools=["h100", "a100"]), RunaiMasterSpec(cpu=8)],
        )
    ),
    "mpi": Example(
        lambda: build_request(
            trainer=CustomTrainer(func=train, func_args={"epochs": 3}, num_nodes=2, resources_per_node={"gpu": 4})
        ),
        BUILT_IN_TEMPLATES["deepspeed-distributed"],
    ),
    "container": Example(
        lambda: build_request(
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
        lambda: build_request(
            trainer=BuiltinTrainer(
                config=TorchTuneConfig(epochs=2, peft_config=LoraConfig(), resources_per_node={"gpu": 1})
            ),
            initializer=Initializer(
                dataset=VolumeDatasetInitializer("pvc://fetched/dataset"),
                model=VolumeModelInitializer("pvc://fetched/model"),
            ),
        ),
        BUILT_IN_TEMPLATES["torchtune-llama3.2-1b"],
    ),
    "recipe-on-four-gpus": Example(
        lambda: build_request(
            trainer=BuiltinTrainer(config=TorchTuneConfig(epochs=1, resources_per_node={"gpu": 4})),
            initializer=Initializer(model=VolumeModelInitializer("pvc://llama")),
        ),
        BUILT_IN_TEMPLATES["torchtune-qwen2.5-1.5b"],
    ),
    "direct-fields": Example(
        lambda: build_request(
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
    "trl": Example(
        lambda: build_request(
            trainer={"trl": {"method": "dpo", "beta": 0.2, "num_nodes": 2, "resources_per_node": {"gpu": 4}}}
        ),
        BUILT_IN_TEMPLATES["trl-llm"],
    ),
    "template": Example(
        lambda: build_request("blueprint", trainer=CustomTrainer(func=train, func_args={"epochs": 3})), build_template()
    ),
    "template-as-it-is": Example(lambda: build_request("blueprint"), build_template()),
    "suspended": Example(
        lambda: build_request(
            owner=Owner(key="dag/run/task", slug="task"),
            trainer=CustomTrainerContainer(image="ghcr.io/team/train:1.0"),
            options=[Suspend()],
        ),
        attempt=2,
    ),
}
