"""One training definition for every orchestrator: the public face of the core.

Each name is loaded when it is first asked for: a training process that imports `progress` from here, and the
supervisor of a local job, shall not wait for what only a client needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient
    from trainer_core.configs import (
        ContainerBackendConfig,
        DebugBackendConfig,
        KubernetesBackendConfig,
        LocalProcessBackendConfig,
        RunaiBackendConfig,
        TrainingOperatorBackendConfig,
        TrainingRuntimeSource,
    )
    from trainer_core.distributed_config import DistributedConfig
    from trainer_core.errors import (
        BackendUnavailableError,
        ConflictError,
        InvalidRequestError,
        JobEndedError,
        JobFailedError,
        JobNotFoundError,
        RuntimeNotFoundError,
        TrainerError,
        UnsupportedError,
        WaitTimeoutError,
    )
    from trainer_core.initializers import (
        DATASET_PATH,
        MODEL_PATH,
        DataCacheInitializer,
        FileDatasetInitializer,
        FileModelInitializer,
        HuggingFaceDatasetInitializer,
        HuggingFaceModelInitializer,
        Initializer,
        S3DatasetInitializer,
        S3ModelInitializer,
        VolumeDatasetInitializer,
        VolumeModelInitializer,
    )
    from trainer_core.inside.paths import dataset_path, model_path, output_path
    from trainer_core.inside.progress import progress
    from trainer_core.inside.status import update_trainjob_status
    from trainer_core.jobs import Event, Step, TrainJob
    from trainer_core.observation import Observation, Progress
    from trainer_core.options import (
        ActiveDeadlineSeconds,
        Annotations,
        ContainerPatch,
        DeleteAfter,
        GangScheduling,
        JobSetSpecPatch,
        JobSetTemplatePatch,
        JobSpecPatch,
        JobTemplatePatch,
        Labels,
        ManagedBy,
        Name,
        PodSpecPatch,
        PodTemplatePatch,
        PriorityClass,
        PyTorchJobSpec,
        QueueName,
        ReplicatedJobPatch,
        RuntimePatch,
        Suspend,
        TrainerArgs,
        TrainerCommand,
        TrainingRuntimeSpecPatch,
        Workspace,
    )
    from trainer_core.options.runai import RunaiMasterSpec, RunaiSpec
    from trainer_core.outcome import Category, Diagnosis, Outcome
    from trainer_core.ref import TrainJobRef
    from trainer_core.request import Owner, TrainJobRequest
    from trainer_core.resources import get_tpu_num_nodes
    from trainer_core.runai.spec import TrainingWorkloadSpec
    from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType
    from trainer_core.secrets import SecretRef
    from trainer_core.template import TrainJobTemplate
    from trainer_core.trainers import (
        BuiltinTrainer,
        CustomTrainer,
        CustomTrainerContainer,
        DataFormat,
        DataType,
        LoraConfig,
        Loss,
        TorchTuneConfig,
        TorchTuneInstructDataset,
    )

__all__ = [
    "DATASET_PATH",
    "MODEL_PATH",
    "ActiveDeadlineSeconds",
    "Annotations",
    "BackendUnavailableError",
    "BuiltinTrainer",
    "Category",
    "ConflictError",
    "ContainerBackendConfig",
    "ContainerPatch",
    "CustomTrainer",
    "CustomTrainerContainer",
    "DataCacheInitializer",
    "DataFormat",
    "DataType",
    "DebugBackendConfig",
    "DeleteAfter",
    "Diagnosis",
    "DistributedConfig",
    "Event",
    "FileDatasetInitializer",
    "FileModelInitializer",
    "GangScheduling",
    "HuggingFaceDatasetInitializer",
    "HuggingFaceModelInitializer",
    "Initializer",
    "InvalidRequestError",
    "JobEndedError",
    "JobFailedError",
    "JobNotFoundError",
    "JobSetSpecPatch",
    "JobSetTemplatePatch",
    "JobSpecPatch",
    "JobTemplatePatch",
    "KubernetesBackendConfig",
    "Labels",
    "LocalProcessBackendConfig",
    "LoraConfig",
    "Loss",
    "ManagedBy",
    "Name",
    "Observation",
    "Outcome",
    "Owner",
    "PodSpecPatch",
    "PodTemplatePatch",
    "PriorityClass",
    "Progress",
    "PyTorchJobSpec",
    "QueueName",
    "ReplicatedJobPatch",
    "RunaiBackendConfig",
    "RunaiMasterSpec",
    "RunaiSpec",
    "Runtime",
    "RuntimeKind",
    "RuntimeNotFoundError",
    "RuntimePatch",
    "RuntimeTrainer",
    "S3DatasetInitializer",
    "S3ModelInitializer",
    "SecretRef",
    "Step",
    "Suspend",
    "TorchTuneConfig",
    "TorchTuneInstructDataset",
    "TrainJob",
    "TrainJobRef",
    "TrainJobRequest",
    "TrainJobTemplate",
    "TrainerArgs",
    "TrainerClient",
    "TrainerCommand",
    "TrainerError",
    "TrainerType",
    "TrainingOperatorBackendConfig",
    "TrainingRuntimeSource",
    "TrainingRuntimeSpecPatch",
    "TrainingWorkloadSpec",
    "UnsupportedError",
    "VolumeDatasetInitializer",
    "VolumeModelInitializer",
    "WaitTimeoutError",
    "Workspace",
    "dataset_path",
    "get_tpu_num_nodes",
    "model_path",
    "output_path",
    "progress",
    "update_trainjob_status",
]

_MODULES = {
    "client": ("TrainerClient",),
    "configs": (
        "ContainerBackendConfig",
        "DebugBackendConfig",
        "KubernetesBackendConfig",
        "LocalProcessBackendConfig",
        "RunaiBackendConfig",
        "TrainingOperatorBackendConfig",
        "TrainingRuntimeSource",
    ),
    "distributed_config": ("DistributedConfig",),
    "errors": (
        "BackendUnavailableError",
        "ConflictError",
        "InvalidRequestError",
        "JobEndedError",
        "JobFailedError",
        "JobNotFoundError",
        "RuntimeNotFoundError",
        "TrainerError",
        "UnsupportedError",
        "WaitTimeoutError",
    ),
    "initializers": (
        "DATASET_PATH",
        "MODEL_PATH",
        "DataCacheInitializer",
        "FileDatasetInitializer",
        "FileModelInitializer",
        "HuggingFaceDatasetInitializer",
        "HuggingFaceModelInitializer",
        "Initializer",
        "S3DatasetInitializer",
        "S3ModelInitializer",
        "VolumeDatasetInitializer",
        "VolumeModelInitializer",
    ),
    "inside.paths": ("dataset_path", "model_path", "output_path"),
    "inside.progress": ("progress",),
    "inside.status": ("update_trainjob_status",),
    "jobs": ("Event", "Step", "TrainJob"),
    "observation": ("Observation", "Progress"),
    "options": (
        "ActiveDeadlineSeconds",
        "Annotations",
        "ContainerPatch",
        "DeleteAfter",
        "GangScheduling",
        "JobSetSpecPatch",
        "JobSetTemplatePatch",
        "JobSpecPatch",
        "JobTemplatePatch",
        "Labels",
        "ManagedBy",
        "Name",
        "PodSpecPatch",
        "PodTemplatePatch",
        "PriorityClass",
        "PyTorchJobSpec",
        "QueueName",
        "ReplicatedJobPatch",
        "RuntimePatch",
        "Suspend",
        "TrainerArgs",
        "TrainerCommand",
        "TrainingRuntimeSpecPatch",
        "Workspace",
    ),
    "options.runai": ("RunaiMasterSpec", "RunaiSpec"),
    "outcome": ("Category", "Diagnosis", "Outcome"),
    "ref": ("TrainJobRef",),
    "request": ("Owner", "TrainJobRequest"),
    "resources": ("get_tpu_num_nodes",),
    "runai.spec": ("TrainingWorkloadSpec",),
    "runtimes": ("Runtime", "RuntimeKind", "RuntimeTrainer", "TrainerType"),
    "secrets": ("SecretRef",),
    "template": ("TrainJobTemplate",),
    "trainers": (
        "BuiltinTrainer",
        "CustomTrainer",
        "CustomTrainerContainer",
        "DataFormat",
        "DataType",
        "LoraConfig",
        "Loss",
        "TorchTuneConfig",
        "TorchTuneInstructDataset",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
