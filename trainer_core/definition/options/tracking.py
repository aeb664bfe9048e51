"""The option that says where the run of a TrainJob is tracked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainer_core.base import validation
from trainer_core.model.option import BaseOption, section

_KINDS = ("mlflow", "wandb", "comet")


@dataclass
class Tracking(BaseOption):
    """Track the TrainJob as a run of MLflow, or prepare the environment for W&B or Comet. Every backend accepts it.

    Without this option a job is tracked if the submitting process is configured with a tracking URI: by an Airflow
    connection of type ``mlflow``, or by ``MLFLOW_TRACKING_URI``. No upstream field; the environment variables become
    part of ``spec.trainer.env``. All values can be Airflow templates.

    Args:
        uri: Tracking URI of the MLflow server, ``http://…`` or ``https://…``, without credentials. Default: the URI of
            the connection or of ``MLFLOW_TRACKING_URI``. Credentials are sent to the server that they belong to only.
        experiment: Name of the experiment (W&B, Comet: of the project). Default: the id of the DAG, or ``trainjob``.
        run_name: Name of the run. Default: the name of the TrainJob.
        tags: Further tags of the run; names that begin with ``trainjob.`` are those of this project. Default: none.
        params: Whether the arguments of the training function become parameters of the run. Default True.
        join: True (default): ``MLFLOW_RUN_ID`` is set for the nodes, so that mlflow inside the training logs to the
            same run. False: mlflow inside the training starts separate runs in the same experiment.
        training_uri: Tracking URI for the training, where the nodes reach the server at another address. Default:
            `uri`.
        required: True: the submit fails if no run can be created. False (default): the job runs in any case, and the
            run is created later.
        kind: ``mlflow`` (default), ``wandb`` or ``comet``. For the latter two only environment variables are set, by
            which their client inside the training finds its run again after a restart.

    Raises:
        ValueError: A URI is not http or https or has credentials, the kind is unknown, or a tag is one of this project.

    Example:
        ```python
        client.train(trainer=trainer, options=[Tracking(experiment="digits")])
        ```
    """

    uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    params: bool = True
    join: bool = True
    training_uri: str | None = None
    required: bool = False
    kind: str = "mlflow"

    def __post_init__(self) -> None:
        validation.check_tracking_uri("Tracking uri", self.uri)
        validation.check_tracking_uri("Tracking training_uri", self.training_uri)
        validation.check_one_of("Tracking kind", self.kind, _KINDS)
        validation.check_mapping("Tracking tags", self.tags, "{'team': 'vision'}")
        validation.check_size("Tracking tags", self.tags)
        if own := [str(key) for key in self.tags or {} if str(key).startswith("trainjob.")]:
            raise ValueError(
                f"Tracking tags: {own[0]} is set by this project; use a name that does not begin with trainjob."
            )

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        values = {
            "kind": self.kind if self.kind != "mlflow" else None,
            "uri": self.uri,
            "experiment": self.experiment,
            "run_name": self.run_name,
            "tags": {str(key): str(value) for key, value in (self.tags or {}).items()},
            "params": self.params and None,
            "join": self.join and None,
            "training_uri": self.training_uri,
            "required": self.required or None,
        }
        section(job_spec, "spec")["tracking"] = {
            key: value for key, value in values.items() if value is not None and value != {}
        }
