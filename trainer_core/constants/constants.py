"""Texts that the API takes and returns, by the names that the Kubeflow SDK has for them."""

from trainer_core import DATASET_PATH as DATASET_PATH, MODEL_PATH as MODEL_PATH
from trainer_core.base import resources as _resources
from trainer_core.k8s import resources as _kinds, runtimes as _runtimes
from trainer_core.model import jobs as _jobs

GROUP, VERSION = _kinds.TRAINJOBS.group, _kinds.TRAINJOBS.version
TRAINJOB_KIND, TRAINJOB_PLURAL = _kinds.TRAINJOBS.kind, _kinds.TRAINJOBS.plural
CLUSTER_TRAINING_RUNTIME_PLURAL = _kinds.CLUSTER_TRAINING_RUNTIMES.plural
TRAINING_RUNTIME_PLURAL = _kinds.TRAINING_RUNTIMES.plural
TRAINJOB_CREATED, TRAINJOB_RUNNING = _jobs.CREATED, _jobs.RUNNING
TRAINJOB_COMPLETE, TRAINJOB_FAILED = _jobs.COMPLETE, _jobs.FAILED
RUNTIME_FRAMEWORK_LABEL, TRAINJOB_ANCESTOR_LABEL = _runtimes.FRAMEWORK_LABEL, _runtimes.ANCESTOR_LABEL
DATASET_INITIALIZER, MODEL_INITIALIZER, NODE = (
    _runtimes.DATASET_INITIALIZER,
    _runtimes.MODEL_INITIALIZER,
    _runtimes.NODE,
)
GPU_LABEL, TPU_LABEL, CPU_LABEL = _resources.GPU, "google.com/tpu", "cpu"
UNKNOWN = "Unknown"
DEFAULT_TRAINING_RUNTIME = "torch-distributed"
