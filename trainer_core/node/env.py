"""Environment variables and limits that node processes and backends agree on."""

from __future__ import annotations

import os
from collections.abc import Callable

#: Path of the payload, the packaged function as JSON.
PAYLOAD = "TRAINJOB_PAYLOAD"
#: Path of the file for the result or error of a node.
TERMINATION_LOG = "TRAINJOB_TERMINATION_LOG"
#: Path or file:// URI for a result of any size. Optional.
RESULT_URI = "TRAINJOB_RESULT_URI"
DATASET_PATH = "TRAINJOB_DATASET_PATH"
MODEL_PATH = "TRAINJOB_MODEL_PATH"
OUTPUT_PATH = "TRAINJOB_OUTPUT_PATH"
#: Folder of the checkpoints of this training, and the settings of the option `Checkpoints` as JSON.
CHECKPOINT_PATH = "TRAINJOB_CHECKPOINT_PATH"
CHECKPOINTS = "TRAINJOB_CHECKPOINTS"
NAME = "TRAINJOB_NAME"
#: Of a trial of a search: the settings of `objective.Objective`, and the parameters by name, as JSON.
OBJECTIVE = "TRAINJOB_OBJECTIVE"
HYPERPARAMETERS = "TRAINJOB_HYPERPARAMETERS"
#: Seconds between two reports of the use of resources; 0 for none. Optional.
RESOURCE_INTERVAL = "TRAINJOB_RESOURCE_INTERVAL"
#: Begin of the lines of such reports.
RESOURCE_PREFIX = "[trainjob:resources] "
#: 0 for no server of Trainer's status protocol beside the training function. Optional.
STATUS_SERVER = "TRAINJOB_STATUS_SERVER"
#: Key of the partition of data that the job trains for. Optional.
PARTITION = "TRAINJOB_PARTITION"
#: With the option `Stalled`: its settings as JSON, and the folder for the beats of the ranks of a node.
STALLED = "TRAINJOB_STALLED"
BEATS = "TRAINJOB_BEATS"
#: Number of nodes, for launchers that do not pass it to their processes.
NODES = "TRAINJOB_NODES"
#: The last launch of a node that this process has seen when it began; see `checkpoint_ranks.read_launch`.
LAUNCH = "TRAINJOB_LAUNCH"
#: Beginning of the paths of the marks of processes whose function has returned: see `exit_code`.
MARKS = "TRAINJOB_MARKS"
#: Of Trainer's controller: it has created the container.
_STATUS_URL = "KUBEFLOW_TRAINER_SERVER_URL"
#: Of Trainer's controller, which sets the URL with its gate TrainJobStatus only: nodes of torch, JAX and XGBoost.
_NODES_OF_TRAINER = ("PET_NNODES", "JAX_NUM_PROCESSES", "DMLC_NUM_WORKER")
#: Marks every process of a job, so that all of them can be ended.
UID = "TRAINJOB_UID"

#: Of these variables those of a machine; the others are of one job.
OF_MACHINE = (RESOURCE_INTERVAL, STATUS_SERVER)

DEFAULTS = {
    TERMINATION_LOG: "/dev/termination-log",
    DATASET_PATH: "/workspace/dataset",
    MODEL_PATH: "/workspace/model",
    OUTPUT_PATH: "/workspace/output",
}

#: Rank variables of torchrun, Open MPI, and Trainer's controller for JAX, XGBoost and torch; last the index of the pod.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID", "DMLC_TASK_ID", "PET_NODE_RANK", "JOB_COMPLETION_INDEX")

#: Numbers of processes, by the launchers of `_RANKS`.
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "JAX_NUM_PROCESSES", "DMLC_NUM_WORKER", NODES)

#: Of torchrun: the number of processes on a node, and how many times it has restarted them.
_OF_TORCHRUN = ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")

#: Name of the thread that saves a checkpoint. The function may import another copy of this package than bootstrap,
#: which waits for it.
SAVE_THREAD = "trainjob-save"

#: Argument of bootstrap with which it runs torchrun for itself.
TORCHRUN = "torchrun"

#: Exit code of an initializer after a failure that a retry may fix: EX_TEMPFAIL of sysexits.h.
TRY_AGAIN = 75

#: Size limit of a termination message in Kubernetes, in bytes; the same on every backend.
RECORD_LIMIT = 4096


def keep() -> Callable[[], None]:
    """Return a function that gives the variables of the node the values that they have now."""
    if os.environ.get(RESULT_URI) and "://" not in os.environ[RESULT_URI]:
        # A relative path stays relative to the folder in which the process was started.
        os.environ[RESULT_URI] = os.path.abspath(os.environ[RESULT_URI])
    before = {name: value for name, value in os.environ.items() if _is_of_node(name)}

    def restore() -> None:
        for name in filter(_is_of_node, list(os.environ)):
            del os.environ[name]
        os.environ.update(before)

    return restore


def _is_of_node(name: str) -> bool:
    return name.startswith("TRAINJOB_") or name in (*_RANKS, *_WORLD_SIZES, *_OF_TORCHRUN)


def is_in_job() -> bool:
    """Return whether a launcher has started this process as a part of a job."""
    # The program of an image has no payload. With a terminal, it was started by hand in the container of a job.
    return any(map(os.environ.get, (PAYLOAD, BEATS))) or (_is_in_container_of_job() and not os.isatty(0))


def _is_in_container_of_job() -> bool:
    # A launcher that was started by hand has no index, and another Job with an index has none of the other variables.
    is_of_trainer = os.environ.get("JOB_COMPLETION_INDEX") and any(map(os.environ.get, _NODES_OF_TRAINER))
    return bool(os.environ.get(NAME) or os.environ.get(_STATUS_URL) or is_of_trainer)


def setting(name: str) -> str:
    """Return an environment variable of this process, or its default; an empty value counts as unset.

    Folders have a default in a job only. By hand in the container of a job, its data can be read, and no more.
    """
    is_beside_job = _is_in_container_of_job() and not is_in_job()
    if is_beside_job and name not in (DATASET_PATH, MODEL_PATH):
        return ""
    has_default = is_beside_job or is_in_job() or name == TERMINATION_LOG
    return os.environ.get(name) or (DEFAULTS.get(name, "") if has_default else "")


def rank() -> int:
    """Return the global rank of this process; 0 if no launcher sets one."""
    return _first_number(_RANKS, 0)


def world_size() -> int:
    """Return the number of processes of the job; 1 if no launcher sets it."""
    return _first_number(_WORLD_SIZES, 1)


def processes_on_node() -> int:
    """Return the number of processes that torchrun starts on this node; 1 without torchrun."""
    return _first_number(_OF_TORCHRUN[:1], 1)


def _first_number(names: tuple[str, ...], default: int) -> int:
    return next((int(text) for name in names if (text := os.environ.get(name, "")).isdecimal()), default)


def restart() -> int:
    """Return how many times torchrun has restarted the processes of this node."""
    return _first_number(_OF_TORCHRUN[1:], 0)
