"""The public names of `trainer_core`, by the module that defines each. `__init__.py` loads them on first use."""

from .backends.runai.config import (
    RunaiBackendConfig as RunaiBackendConfig,
)
from .backends.runai.options import (
    RunaiMasterSpec as RunaiMasterSpec,
    RunaiSpec as RunaiSpec,
)
from .backends.runai.workload import (
    TrainingWorkloadSpec as TrainingWorkloadSpec,
)
from .backends.training_operator.config import (
    TrainingOperatorBackendConfig as TrainingOperatorBackendConfig,
)
from .backends.training_operator.options import (
    PyTorchJobSpec as PyTorchJobSpec,
)
from .base.errors import (
    BackendUnavailableError as BackendUnavailableError,
    ConflictError as ConflictError,
    InvalidRequestError as InvalidRequestError,
    JobEndedError as JobEndedError,
    JobNotFoundError as JobNotFoundError,
    RuntimeNotFoundError as RuntimeNotFoundError,
    TrackingError as TrackingError,
    TrainerError as TrainerError,
    UnsupportedError as UnsupportedError,
    WaitTimeoutError as WaitTimeoutError,
)
from .base.resources import (
    get_tpu_num_nodes as get_tpu_num_nodes,
)
from .base.secrets import (
    SecretRef as SecretRef,
)
from .client import (
    TrackedRun as TrackedRun,
    TrainerClient as TrainerClient,
)
from .client.debugging import (
    DebugResult as DebugResult,
)
from .client.optimizer_client import (
    OptimizerClient as OptimizerClient,
)
from .definition.initializers import (
    DATASET_PATH as DATASET_PATH,
    MODEL_PATH as MODEL_PATH,
    DataCacheInitializer as DataCacheInitializer,
    FileDatasetInitializer as FileDatasetInitializer,
    FileModelInitializer as FileModelInitializer,
    HuggingFaceDatasetInitializer as HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer as HuggingFaceModelInitializer,
    Initializer as Initializer,
    S3DatasetInitializer as S3DatasetInitializer,
    S3ModelInitializer as S3ModelInitializer,
    VolumeDatasetInitializer as VolumeDatasetInitializer,
    VolumeModelInitializer as VolumeModelInitializer,
)
from .definition.options import (
    ActiveDeadlineSeconds as ActiveDeadlineSeconds,
    Annotations as Annotations,
    Checkpoints as Checkpoints,
    ContainerPatch as ContainerPatch,
    DeleteAfter as DeleteAfter,
    GangScheduling as GangScheduling,
    JobSetSpecPatch as JobSetSpecPatch,
    JobSetTemplatePatch as JobSetTemplatePatch,
    JobSpecPatch as JobSpecPatch,
    JobTemplatePatch as JobTemplatePatch,
    Labels as Labels,
    ManagedBy as ManagedBy,
    MoreMemory as MoreMemory,
    Name as Name,
    OnBackend as OnBackend,
    Partition as Partition,
    PodSpecPatch as PodSpecPatch,
    PodTemplatePatch as PodTemplatePatch,
    PriorityClass as PriorityClass,
    QueueName as QueueName,
    ReplicatedJobPatch as ReplicatedJobPatch,
    RestartPolicy as RestartPolicy,
    Reuse as Reuse,
    RuntimePatch as RuntimePatch,
    Stalled as Stalled,
    StartWithin as StartWithin,
    Suspend as Suspend,
    Tracking as Tracking,
    TrainerArgs as TrainerArgs,
    TrainerCommand as TrainerCommand,
    TrainingRuntimeSpecPatch as TrainingRuntimeSpecPatch,
    Workspace as Workspace,
)
from .definition.options.distributed_config import (
    DistributedConfig as DistributedConfig,
)
from .definition.template import (
    TrainJobTemplate as TrainJobTemplate,
)
from .definition.trainers import (
    BuiltinTrainer as BuiltinTrainer,
    ConfigTrainer as ConfigTrainer,
    CustomTrainer as CustomTrainer,
    CustomTrainerContainer as CustomTrainerContainer,
)
from .definition.trl import (
    TRLConfig as TRLConfig,
)
from .model.config import (
    ContainerBackendConfig as ContainerBackendConfig,
    DebugBackendConfig as DebugBackendConfig,
    KubernetesBackendConfig as KubernetesBackendConfig,
    LocalProcessBackendConfig as LocalProcessBackendConfig,
    TrainingRuntimeSource as TrainingRuntimeSource,
)
from .model.jobs import (
    Category as Category,
    Diagnosis as Diagnosis,
    Event as Event,
    JobFailedError as JobFailedError,
    Observation as Observation,
    Outcome as Outcome,
    Progress as Progress,
    Step as Step,
    TrainJob as TrainJob,
    TrainJobRef as TrainJobRef,
)
from .model.request import (
    Owner as Owner,
    TrainJobRequest as TrainJobRequest,
)
from .model.runtimes import (
    Runtime as Runtime,
    RuntimeKind as RuntimeKind,
    RuntimeTrainer as RuntimeTrainer,
    TrainerType as TrainerType,
)
from .model.torchtune import (
    DataFormat as DataFormat,
    DataType as DataType,
    LoraConfig as LoraConfig,
    Loss as Loss,
    TorchTuneConfig as TorchTuneConfig,
    TorchTuneInstructDataset as TorchTuneInstructDataset,
)
from .node.checkpoints import (
    checkpoint_path as checkpoint_path,
    checkpoints as checkpoints,
)
from .node.hyperparameters import (
    get_hyperparameters as get_hyperparameters,
)
from .node.paths import (
    dataset_path as dataset_path,
    model_path as model_path,
    output_path as output_path,
)
from .node.progress import (
    progress as progress,
    report_metrics as report_metrics,
)
from .node.trainer_status import (
    update_trainjob_status as update_trainjob_status,
)
from .search.definition import (
    Asha as Asha,
    Direction as Direction,
    GridSearch as GridSearch,
    MedianStop as MedianStop,
    Objective as Objective,
    OptunaSampler as OptunaSampler,
    RandomSearch as RandomSearch,
    TrialConfig as TrialConfig,
)
from .search.results import (
    Metric as Metric,
    OptimizationJob as OptimizationJob,
    Result as Result,
    SearchOutcome as SearchOutcome,
    Trial as Trial,
)
from .search.space import (
    Search as Search,
)
from .tracking.model_registry import (
    ModelRegistry as ModelRegistry,
    ModelVersion as ModelVersion,
    Promotion as Promotion,
)
from .tracking.registries import (
    open_registry as open_registry,
)
from .tracking.server import (
    MlflowServer as MlflowServer,
)
