"""The types of a training, by the name that the Kubeflow SDK has for their module."""

from trainer_core import (
    BuiltinTrainer as BuiltinTrainer,
    CustomTrainer as CustomTrainer,
    CustomTrainerContainer as CustomTrainerContainer,
    DataCacheInitializer as DataCacheInitializer,
    DataFormat as DataFormat,
    DataType as DataType,
    Event as Event,
    HuggingFaceDatasetInitializer as HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer as HuggingFaceModelInitializer,
    Initializer as Initializer,
    LoraConfig as LoraConfig,
    Loss as Loss,
    Runtime as Runtime,
    RuntimeKind as RuntimeKind,
    RuntimeTrainer as RuntimeTrainer,
    S3DatasetInitializer as S3DatasetInitializer,
    S3ModelInitializer as S3ModelInitializer,
    Step as Step,
    TorchTuneConfig as TorchTuneConfig,
    TorchTuneInstructDataset as TorchTuneInstructDataset,
    TrainerType as TrainerType,
    TrainJob as TrainJob,
    TrainJobTemplate as TrainJobTemplate,
)

TORCH_TUNE = "torchtune"
