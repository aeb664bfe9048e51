"""Runtimes of the Run:ai backend: built-in ones, and Run:ai's own templates. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer_core.backends.runai.workload import TrainingWorkloadSpec
from trainer_core.k8s import runtimes
from trainer_core.k8s.parsing import RawObject
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType
from trainer_core.node import env

#: Namespace of the templates of all projects.
SHARED_NAMESPACE = "runai"
_DATASET_PATH, _MODEL_PATH = env.DEFAULTS[env.DATASET_PATH], env.DEFAULTS[env.MODEL_PATH]
#: Launch policy of a framework, in the terms of Trainer's ``spec.mlPolicy``; other frameworks start plain processes.
_POLICIES = {"torch": "torch", "deepspeed": "mpi", "mlx": "mpi", "mpi": "mpi"}


@dataclass(frozen=True)
class RuntimeTemplate:
    """A runtime: the part of a workload that does not depend on the request."""

    name: str
    #: ``torch``, ``torchtune``, ``deepspeed``, ``python``, …
    framework: str
    image: str
    #: Fields of the Run:ai template; None for a built-in runtime.
    spec: TrainingWorkloadSpec | None = None
    #: Whether the runtime is available to all projects.
    shared: bool = True
    #: Prefix of the torchtune config files of the model, such as ``llama3_2/1B``; empty without a recipe.
    torchtune_config: str = field(default="", repr=False)
    #: Arguments of every recipe, before those of the request.
    torchtune_args: tuple[str, ...] = field(default=(), repr=False)

    @property
    def policy(self) -> str | None:
        """``torch`` for torchrun, ``mpi`` for mpirun; None for one plain process on each node."""
        return _POLICIES.get(self.framework)

    def to_runtime(self) -> Runtime:
        """Return the runtime as an object of the public API."""
        builtin = self.framework == "torchtune"
        trainer = RuntimeTrainer(
            trainer_type=TrainerType.BUILTIN_TRAINER if builtin else TrainerType.CUSTOM_TRAINER,
            framework=self.framework,
            image=self.image,
            command=runtimes.get_command(self.framework, self.policy),
        )
        kind = RuntimeKind.CLUSTER_TRAINING_RUNTIME if self.shared else RuntimeKind.TRAINING_RUNTIME
        return Runtime(name=self.name, trainer=trainer, kind=kind)


def _build_torchtune_template(name: str, config: str, *tokenizer_args: str) -> RuntimeTemplate:
    return RuntimeTemplate(
        f"torchtune-{name}",
        "torchtune",
        "ghcr.io/kubeflow/trainer/torchtune-trainer",
        torchtune_config=config,
        torchtune_args=(
            "dataset=torchtune.datasets.instruct_dataset",
            "dataset.source=parquet",
            f"dataset.data_dir={_DATASET_PATH}/data",
            "output_dir=/workspace/output",
            *tokenizer_args,
            f"checkpointer.checkpoint_dir={_MODEL_PATH}",
        ),
    )


_LLAMA_TOKENIZER = f"tokenizer.path={_MODEL_PATH}/original/tokenizer.model"
#: Built-in runtimes by name. Names, images and settings are those of Trainer's own runtimes, so that a request has the
#: same meaning on both backends.
BUILT_IN_TEMPLATES: Mapping[str, RuntimeTemplate] = {
    template.name: template
    for template in (
        RuntimeTemplate("python", "python", "python:3.12-slim"),
        RuntimeTemplate("torch-distributed", "torch", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
        RuntimeTemplate("deepspeed-distributed", "deepspeed", "ghcr.io/kubeflow/trainer/deepspeed-runtime"),
        _build_torchtune_template("llama3.2-1b", "llama3_2/1B", _LLAMA_TOKENIZER),
        _build_torchtune_template("llama3.2-3b", "llama3_2/3B", _LLAMA_TOKENIZER),
        _build_torchtune_template(
            "qwen2.5-1.5b",
            "qwen2_5/1.5B",
            f"tokenizer.path={_MODEL_PATH}/vocab.json",
            f"tokenizer.merges_file={_MODEL_PATH}/merges.txt",
        ),
    )
}


def is_template(raw: RawObject) -> bool:
    """Return whether a raw workload is a template (``spec.usage: Template``), which never runs."""
    return (raw.get("spec") or {}).get("usage") == "Template"


def parse_template(raw: RawObject) -> RuntimeTemplate:
    """Parse a raw Run:ai template. Its framework is in the label that Trainer uses for runtimes."""
    metadata, spec = raw["metadata"], TrainingWorkloadSpec.from_wire(raw.get("spec") or {})
    return RuntimeTemplate(
        name=metadata["name"],
        framework=(metadata.get("labels") or {}).get(runtimes.FRAMEWORK_LABEL) or ("mpi" if spec.mpi else "torch"),
        image=spec.image or "",
        spec=spec,
        shared=metadata.get("namespace") == SHARED_NAMESPACE,
    )
