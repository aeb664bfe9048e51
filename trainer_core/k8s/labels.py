"""Labels and annotations of the objects that the backends create. Any process can find and read a job by them."""

from __future__ import annotations

from trainer_core.model.jobs import DELETE_AFTER_LABEL, KFP_ON_KILL_LABEL, KFP_RUN_LABEL, PARTITION_LABEL

#: Recommended Kubernetes label for the tool that manages an object, and its value. Also the field manager of writes.
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "trainjob-workflows"
#: Prefix of all labels and annotations below.
PREFIX = "trainjob-workflows/"
#: Label: the owner of a TrainJob, hashed by `naming.hash_owner_key`.
OWNER = "trainjob-workflows/owner"
#: Label: seconds after the end of a TrainJob when it may be deleted.
DELETE_AFTER = DELETE_AFTER_LABEL
#: Label: id of the Kubeflow Pipelines run that a TrainJob belongs to.
RUN = KFP_RUN_LABEL
#: Label: what a step that waits for the TrainJob does to it when its run is terminated: cancel or keep.
ON_KILL = KFP_ON_KILL_LABEL
#: Label and annotation: the partition that a TrainJob trains for.
PARTITION = PARTITION_LABEL
#: Annotation: the request as JSON.
REQUEST = "trainjob-workflows/request"
#: Annotation: the properties of the runtime at submit, so that reading the job does not need the runtime.
RUNTIME = "trainjob-workflows/runtime"
#: Annotation: hash of the request.
FINGERPRINT = "trainjob-workflows/fingerprint"
#: Annotation: number of the attempt, from 0.
ATTEMPT = "trainjob-workflows/attempt"
#: Annotation, if the runtime or the checkpoints expect restarts: the controller ends a job that crashes repeatedly.
RESTARTS = "trainjob-workflows/restarts"
#: Annotation: seconds within which all pods of the job must have a node.
START_WITHIN = "trainjob-workflows/start-within"
#: Annotation: memory of the attempt and of the next one, as JSON of `AttemptMemory`, if the next one may have more.
MEMORY = "trainjob-workflows/memory"
#: Annotation: the restart rules and the restarts before this attempt, as JSON of `AttemptRestarts`.
RESTART_POLICY = "trainjob-workflows/restart-policy"
#: Annotation: time when the job was cancelled.
CANCELLED = "trainjob-workflows/cancelled"
#: Largest values of the two annotations below, in bytes, with their keys. A result has up to 4 KiB, a diagnosis twenty
#: lines of a log. A request leaves room for both.
MAX_OUTCOME_BYTES = 65_536
MAX_DIAGNOSIS_BYTES = 16_384
#: Annotation: diagnosis with which the job was cancelled, as JSON.
DIAGNOSIS = "trainjob-workflows/diagnosis"
#: Annotation: a progress line of a job with restart rules that a waiter has cancelled, and with it its pods.
PROGRESS = "trainjob-workflows/progress"
#: Annotation: the outcome as JSON, written by the process that waited. The pods that report it may be deleted earlier.
OUTCOME = "trainjob-workflows/outcome"
