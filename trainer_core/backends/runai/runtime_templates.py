"""Runtimes of the Run:ai backend: built-in ones, and Run:ai's own templates. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainer_core.backends.runai.workload import TrainingWorkloadSpec
from trainer_core.k8s import runtimes
from trainer_core.k8s.parsing import RawObject
from trainer_core.model import torchtune
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

#: Namespace of the templates of all projects.
SHARED_NAMESPACE = "runai"
#: Launch policy of a framework, in the terms of Trainer's ``spec.mlPolicy``; other frameworks start plain processes.
_POLICIES = {"torch": "torch", "trl": "torch", "deepspeed": "mpi", "mlx": "mpi", "mpi": "mpi"}


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

    @property
    def policy(self) -> str | None:
        """``torch`` for torchrun, ``mpi`` for mpirun; None for one plain process on each node."""
        return _POLICIES.get(self.framework)

    def to_runtime(self) -> Runtime:
        """Return the runtime as an object of the public API."""
        builtin = runtimes.get_program(self.framework)
        trainer = RuntimeTrainer(
            trainer_type=TrainerType.BUILTIN_TRAINER if builtin else TrainerType.CUSTOM_TRAINER,
            framework=self.framework,
            image=self.image,
            command=runtimes.get_command(self.framework, self.policy),
        )
        kind = RuntimeKind.CLUSTER_TRAINING_RUNTIME if self.shared else RuntimeKind.TRAINING_RUNTIME
        return Runtime(name=self.name, trainer=trainer, kind=kind)


#: Built-in runtimes by name. Names, images and settings are those of Trainer's own runtimes, so that a request has the
#: same meaning on both backends.
BUILT_IN_TEMPLATES: Mapping[str, RuntimeTemplate] = {
    template.name: template
    for template in (
        RuntimeTemplate("python", "python", "python:3.12-slim"),
        RuntimeTemplate("torch-distributed", "torch", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
        RuntimeTemplate("trl-llm", "trl", "huggingface/trl:1.16.0"),
        RuntimeTemplate("deepspeed-distributed", "deepspeed", "ghcr.io/kubeflow/trainer/deepspeed-runtime"),
        *(
            RuntimeTemplate(name, "torchtune", "ghcr.io/kubeflow/trainer/torchtune-trainer")
            for name in torchtune.MODELS
            if name != "torchtune-llama3.3-70b"  # Its recipe needs several nodes.
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
