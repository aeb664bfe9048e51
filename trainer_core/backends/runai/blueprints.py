"""What a workload can be made from: blueprints for the usual frameworks, and Run:ai's own templates. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer_core.cluster import runtimes
from trainer_core.cluster.raw import Raw
from trainer_core.initializers import DATASET_PATH, MODEL_PATH
from trainer_core.runai.spec import TrainingWorkloadSpec
from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

__all__ = ["BUILT_IN", "GLOBAL_NAMESPACE", "Blueprint", "is_template", "of_template"]

#: Where templates for all projects live.
GLOBAL_NAMESPACE = "runai"
_TEMPLATE = "Template"
_POLICIES = {"torch": "torch", "deepspeed": "mpi", "mlx": "mpi", "mpi": "mpi"}


@dataclass(frozen=True)
class Blueprint:
    """What a request's workload is made from.

    Attributes:
        name: Its name.
        framework: What it trains with: ``torch``, ``torchtune``, ``deepspeed``, ``python``, …
        image: Its image; empty where its template says none.
        template: The fields of the Run:ai template that it is; None for one of ours.
        shared: It serves all projects.
        recipe: Of torchtune, the model's configurations and what is always said to them.
    """

    name: str
    framework: str
    image: str
    template: TrainingWorkloadSpec | None = None
    shared: bool = True
    recipe: tuple[str, ...] = field(default=(), repr=False)

    @property
    def policy(self) -> str | None:
        """How its nodes learn of each other: ``torch``, ``mpi`` or not by a launcher of their own."""
        return _POLICIES.get(self.framework)

    @property
    def runtime(self) -> Runtime:
        """It as the API reference knows it."""
        builtin = self.framework == "torchtune"
        trainer = RuntimeTrainer(
            trainer_type=TrainerType.BUILTIN_TRAINER if builtin else TrainerType.CUSTOM_TRAINER,
            framework=self.framework,
            image=self.image,
            command=runtimes.command(self.framework, self.policy),
        )
        kind = RuntimeKind.CLUSTER_TRAINING_RUNTIME if self.shared else RuntimeKind.TRAINING_RUNTIME
        return Runtime(name=self.name, trainer=trainer, kind=kind)


def _torchtune(name: str, models: str, *said: str) -> Blueprint:
    always = ("dataset=torchtune.datasets.instruct_dataset", "dataset.source=parquet")
    places = (f"dataset.data_dir={DATASET_PATH}/data", "output_dir=/workspace/output", *said)
    model = f"checkpointer.checkpoint_dir={MODEL_PATH}"
    return Blueprint(
        f"torchtune-{name}",
        "torchtune",
        "ghcr.io/kubeflow/trainer/torchtune-trainer",
        recipe=(models, *always, *places, model),
    )


_LLAMA_TOKENIZER = f"tokenizer.path={MODEL_PATH}/original/tokenizer.model"
#: The names, images and settings of Trainer's stock runtimes, so that a request means the same there and here.
BUILT_IN: Mapping[str, Blueprint] = {
    blueprint.name: blueprint
    for blueprint in (
        Blueprint("python", "python", "python:3.12-slim"),
        Blueprint("torch-distributed", "torch", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
        Blueprint("deepspeed-distributed", "deepspeed", "ghcr.io/kubeflow/trainer/deepspeed-runtime"),
        _torchtune("llama3.2-1b", "llama3_2/1B", _LLAMA_TOKENIZER),
        _torchtune("llama3.2-3b", "llama3_2/3B", _LLAMA_TOKENIZER),
        _torchtune(
            "qwen2.5-1.5b",
            "qwen2_5/1.5B",
            f"tokenizer.path={MODEL_PATH}/vocab.json",
            f"tokenizer.merges_file={MODEL_PATH}/merges.txt",
        ),
    )
}


def is_template(raw: Raw) -> bool:
    """Say whether a workload is none but a blueprint for others."""
    return (raw.get("spec") or {}).get("usage") == _TEMPLATE


def of_template(raw: Raw) -> Blueprint:
    """Return a Run:ai template as a blueprint; a label of it says what it trains with, as that of a runtime does.

    Raises:
        ValueError: Its fields cannot be right.
    """
    metadata, spec = raw["metadata"], TrainingWorkloadSpec.from_wire(raw.get("spec") or {})
    return Blueprint(
        name=metadata["name"],
        framework=(metadata.get("labels") or {}).get(runtimes.FRAMEWORK) or ("mpi" if spec.mpi else "torch"),
        image=spec.image or "",
        template=spec,
        shared=metadata.get("namespace") == GLOBAL_NAMESPACE,
    )
