"""PromoteModelOperator: register the model of a TrainJob and move an alias to it if it is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider import assets, tracking
from airflow_provider.compat import AirflowSkipException
from airflow_provider.hooks.mlflow import MlflowHook
from airflow_provider.operators.manage import ManageOperator
from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.client import TrainerClient
from trainer_core.model.jobs import TrainJobRef

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["PromoteModelOperator"]


class PromoteModelOperator(ManageOperator):
    """Register the model of a TrainJob, and move the alias to it if it is better than the model that has the alias.

    A model that is not better leaves the task skipped, because a successful task updates its Assets. A retry promotes
    the model once. The result is a dict: ``promoted``, ``version``, ``uri``, ``metric`` and ``before``; XCom
    ``model_version`` has the version. Events of the `outlets` carry ``model_uri``, ``model_version``, ``metrics`` and
    ``run_url``.

    Example:
        ```python
        PromoteModelOperator(
            task_id="promote", job=train.output, model="digits", metric="accuracy", outlets=[MODEL]
        )
        ```

    Args:
        job: Name of a TrainJob that is Complete, its ref, or the output of its task (``train.output``); of a search,
            the best trial. Required. Templated.
        model: Name of the model in the registry. Required. Templated.
        metric: Name of the metric by which models are compared. Required. Templated.
        mode: ``max`` (default): the largest value is best; ``min``: the smallest. Not templated.
        min_delta: By how much the metric must be better. Default 0. Not templated.
        alias: The alias. Default ``champion``. Templated.
        partition: Key of a partition, such as ``{{ partition_key }}``: each partition has a separate alias, such as
            ``champion-emea``, and its models are compared with each other only. Default: None, one alias for all.
            Templated.
        artifact: Name of the job's artifact that is the model. Default ``model``. Not templated.
        registry: ``http(s)://`` of an MLflow server, or path of a folder. Default: None, the server of
            `mlflow_conn_id` or of ``MLFLOW_TRACKING_URI``, else the folder ``registry`` in ``TRAINJOB_HOME``.
            Templated.
        replace_metric: True to promote the model although the alias compares another metric or mode, and to compare
            this one from now on. Default False: the task fails. Not templated.
        mlflow_conn_id: Id of an Airflow connection of type ``mlflow``. Default: ``mlflow_default``, if it exists. Not
            templated.
        kwargs: `backend`, `backend_config` and `trainjob_conn_id` as in `TrainJobOperator`, and arguments of every
            operator.

    Raises:
        ValueError: An argument is invalid; raised when the DAG is parsed.
    """

    template_fields: Sequence[str] = ("job", "model", "metric", "alias", "partition", "registry")

    def __init__(
        self,
        *,
        job: Any,
        model: str,
        metric: str,
        mode: Literal["max", "min"] = "max",
        min_delta: float = 0.0,
        alias: str = "champion",
        partition: str | None = None,
        artifact: str = "model",
        registry: str | None = None,
        replace_metric: bool = False,
        mlflow_conn_id: str | None = MlflowHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        texts: dict[str, Any] = {"model": model, "metric": metric, "alias": alias, "artifact": artifact}
        optional = {"partition": partition, "registry": registry}
        texts |= {name: value for name, value in optional.items() if value is not None}
        for name, value in texts.items():
            if not isinstance(value, str) and not hasattr(value, "resolve"):  # Not a result of an upstream task.
                raise ValueError(f"{name} must be a string, got {redact(value)}")
            if value == "":
                raise ValueError(f"{name} is empty")
        validation.check_one_of("mode", mode, ("max", "min"))
        delta: Any = min_delta
        if not isinstance(delta, (int, float)) or not 0 <= delta < math.inf:
            raise ValueError(f"min_delta must be a number of at least 0, got {redact(min_delta)}")
        super().__init__(job=job, **kwargs)
        self.model = model
        self.metric = metric
        self.mode = mode
        self.min_delta = min_delta
        self.alias = alias
        self.partition = partition
        self.artifact = artifact
        self.registry = registry
        self.replace_metric = replace_metric
        self.mlflow_conn_id = mlflow_conn_id

    def _run(self, client: TrainerClient, job: str | TrainJobRef, context: Context) -> Mapping[str, Any]:
        tracking.configure(self.hook, self.mlflow_conn_id)
        partition = None
        if self.partition is not None:
            partition = assets.choose_partition(self.partition, context.get("partition_key"))
        ref = client.get_job_ref(job)
        promotion = client.promote(
            ref,
            model=self.model,
            metric=self.metric,
            mode=self.mode,
            min_delta=self.min_delta,
            alias=self.alias,
            partition=partition,
            artifact=self.artifact,
            registry=self.registry,
            replace_metric=self.replace_metric,
        )
        context["ti"].xcom_push(key="model_version", value=promotion.version)
        compared = f"{self.metric} {promotion.metric:g}, before {promotion.before}"
        if not promotion.promoted:
            raise AirflowSkipException(f"version {promotion.version} of {self.model} is not better: {compared}")
        self.log.info(
            "Version %s of %s is the %s: %s; %s", promotion.version, self.model, self.alias, compared, promotion.uri
        )
        self._update_asset_events(client, ref, promotion.to_dict(), partition)
        return promotion.to_dict()

    def _update_asset_events(
        self, client: TrainerClient, ref: TrainJobRef, promotion: Mapping[str, Any], partition: str | None
    ) -> None:
        events = assets.list_outlet_events(self.outlets, partition)
        run = client.get_run(ref) if events else None
        for _, event in events:
            event.extra = {
                **event.extra,
                "job": ref.name,
                "model_uri": promotion["uri"],
                "model_version": promotion["version"],
                "metrics": {self.metric: promotion["metric"]},
                **({"run_url": run.url} if run else {}),
            }
