"""The options by the module that defines each. `__init__.py` loads them on first use."""

from .checkpoints import (
    Checkpoints as Checkpoints,
)
from .job_fields import (
    ActiveDeadlineSeconds as ActiveDeadlineSeconds,
    Annotations as Annotations,
    DeleteAfter as DeleteAfter,
    Labels as Labels,
    Name as Name,
    Partition as Partition,
    Suspend as Suspend,
    TrainerArgs as TrainerArgs,
    TrainerCommand as TrainerCommand,
)
from .more_memory import (
    MoreMemory as MoreMemory,
)
from .on_backend import (
    OnBackend as OnBackend,
)
from .restart_policy import (
    RestartPolicy as RestartPolicy,
)
from .reuse import (
    Reuse as Reuse,
)
from .runtime import (
    ContainerPatch as ContainerPatch,
    JobSetSpecPatch as JobSetSpecPatch,
    JobSetTemplatePatch as JobSetTemplatePatch,
    JobSpecPatch as JobSpecPatch,
    JobTemplatePatch as JobTemplatePatch,
    PodSpecPatch as PodSpecPatch,
    PodTemplatePatch as PodTemplatePatch,
    ReplicatedJobPatch as ReplicatedJobPatch,
    RuntimePatch as RuntimePatch,
    TrainingRuntimeSpecPatch as TrainingRuntimeSpecPatch,
)
from .scheduling import (
    GangScheduling as GangScheduling,
    ManagedBy as ManagedBy,
    PriorityClass as PriorityClass,
    QueueName as QueueName,
    StartWithin as StartWithin,
)
from .stalled import (
    Stalled as Stalled,
)
from .tracking import (
    Tracking as Tracking,
)
from .workspace import (
    Workspace as Workspace,
)
