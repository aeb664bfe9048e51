"""Names and limits that a job's process and the backend around it agree upon."""

from __future__ import annotations

import os

__all__ = [
    "DATASET_PATH",
    "DEFAULTS",
    "MODEL_PATH",
    "NAME",
    "NODES",
    "OUTPUT_PATH",
    "PAYLOAD",
    "RECORD_LIMIT",
    "RESULT_URI",
    "TERMINATION_LOG",
    "TRY_AGAIN",
    "UID",
    "rank",
    "restart",
    "setting",
]

#: Path of the payload: the packaged function as JSON.
PAYLOAD = "TRAINJOB_PAYLOAD"
#: Path of the file that takes the result or the error of a node.
TERMINATION_LOG = "TRAINJOB_TERMINATION_LOG"
#: Path or file:// URI that takes the whole result, whatever its size. Optional.
RESULT_URI = "TRAINJOB_RESULT_URI"
DATASET_PATH = "TRAINJOB_DATASET_PATH"
MODEL_PATH = "TRAINJOB_MODEL_PATH"
OUTPUT_PATH = "TRAINJOB_OUTPUT_PATH"
NAME = "TRAINJOB_NAME"
#: How many nodes there are, where no launcher tells its processes.
NODES = "TRAINJOB_NODES"
#: Marks every process of a job, so that none of them is missed when it ends.
UID = "TRAINJOB_UID"

DEFAULTS = {
    TERMINATION_LOG: "/dev/termination-log",
    DATASET_PATH: "/workspace/dataset",
    MODEL_PATH: "/workspace/model",
    OUTPUT_PATH: "/workspace/output",
}

#: Who numbers the processes: torchrun, Open MPI, and Trainer's controller for JAX, XGBoost and torch. Where none of
#: them does, the pods of a Job are numbered.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID", "DMLC_TASK_ID", "PET_NODE_RANK", "JOB_COMPLETION_INDEX")

#: Exit code of an initializer that may succeed when it is started again: EX_TEMPFAIL of sysexits.h.
TRY_AGAIN = 75

#: Bytes that Kubernetes keeps of a termination message; the same everywhere, so that backends agree.
RECORD_LIMIT = 4096


def setting(name: str) -> str:
    """Return a setting of this process, or its default; an empty value counts as not set."""
    return os.environ.get(name) or DEFAULTS.get(name, "")


def rank() -> int:
    """Return the global rank of this process; 0 where no launcher numbers the processes."""
    return next((int(text) for name in _RANKS if (text := os.environ.get(name, "")).isdecimal()), 0)


def restart() -> int:
    """Return how often torchrun has already restarted the processes of this node."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0
