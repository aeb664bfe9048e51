"""Airflow Assets for trained models: the data of their events, and the comparison with the previous model.

Airflow creates an asset event when a task with the Asset among its outlets succeeds. Operators and sensors of the
provider write the outcome of the TrainJob to that event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Asset, BaseOperator, get_current_context
from airflow.sdk.definitions.asset import Model
from airflow.sdk.definitions.mappedoperator import OperatorPartial
from airflow.sdk.definitions.xcom_arg import XComArg

from trainer_core.base import validation
from trainer_core.model.jobs import Outcome, extract_metrics

if TYPE_CHECKING:
    from airflow.sdk.definitions._internal.expandinput import ExpandInput

__all__ = [
    "ChecksMapping",
    "ModelAsset",
    "build_event_extra",
    "check_outlets",
    "choose_partition",
    "get_run_partition",
    "job_names_partition",
    "list_outlet_events",
    "update_asset_events",
]

#: Events that the first search for a partition's last one reads. A longer search reads ten times as many, and so on.
_EVENTS = 200


class ModelAsset(Model):
    """A trained model as an Airflow Asset.

    As an outlet of `TrainJobOperator` or `TrainJobSensor`, each of its events has the job's name, ref, metrics,
    artifacts and end time, and in ``artifact_uri`` the location of the model. Events of other Assets have the same
    entries except ``artifact_uri``.

    Example:
        ```python
        MODEL = ModelAsset("digits", metric="accuracy")
        TrainJobOperator(task_id="train", trainer=trainer, outlets=[MODEL])
        ```

    Args:
        name: Name of the Asset.
        uri: URI of the Asset; the same for all versions of the model. Default: None, ``trainjob://models/<name>``.
        artifact: Name of the job's artifact that is the model. Default: ``model``.
        metric: Name of the metric by which models are compared. Default: ``accuracy``.
        mode: ``max`` (default): the largest value of the metric is best; ``min``: the smallest.
        kwargs: Arguments of every Asset.

    Raises:
        ValueError: `mode` is invalid, or Airflow does not accept the name.
    """

    def __init__(
        self,
        name: str,
        uri: str | None = None,
        *,
        artifact: str = "model",
        metric: str = "accuracy",
        mode: Literal["max", "min"] = "max",
        **kwargs: Any,
    ) -> None:
        validation.check_one_of(f"ModelAsset {name!r}: mode", mode, ("max", "min"))
        super().__init__(name, uri or f"trainjob://models/{name}", **kwargs)
        self.artifact = artifact
        self.metric = metric
        self.mode = mode

    def last(self, inlet_events: Mapping[Any, Any], partition: str | None = None) -> dict[str, Any] | None:
        """Return the data of the last event; None if there is none.

        Args:
            inlet_events: ``inlet_events`` of the context of a task that has this Asset among its inlets.
            partition: Key of a partition, of which only the events are read. None (the default): that of the running
                task; in a run without a key, all events.
        """
        event = _find_last(inlet_events[self], get_run_partition() if partition is None else partition)
        return None if event is None else dict(event.extra)

    def is_improved_by(
        self, metrics: Mapping[str, float], inlet_events: Mapping[Any, Any], partition: str | None = None
    ) -> bool:
        """Return whether a model is better than the last one that has the metric; True if no event has it.

        Args:
            metrics: Metrics of the new model, such as the XCom ``metrics`` of the task that trained it.
            inlet_events: ``inlet_events`` of the context of a task that has this Asset among its inlets.
            partition: Key of a partition, as for `last`.

        Raises:
            ValueError: The new model lacks the metric, or it is not a finite number.
        """
        found = extract_metrics({"metrics": dict(metrics)})
        if self.metric not in found:
            known = ", ".join(sorted(found)) or "none"
            raise ValueError(f"ModelAsset {self.name!r}: the new model has no metric {self.metric!r}; it has: {known}")
        event = _find_last(inlet_events[self], get_run_partition() if partition is None else partition, self.metric)
        if event is None:
            return True
        difference = found[self.metric] - extract_metrics(event.extra)[self.metric]
        return bool(difference > 0 if self.mode == "max" else difference < 0)


def check_outlets(task_id: str, outlets: Any, *, waits: bool = True, is_sweep: bool = False) -> None:
    """Check that a task that does not wait for its job, or that is one of a sweep, has no `ModelAsset`."""
    listed = outlets if isinstance(outlets, (list, tuple)) else [outlets]
    model = next((outlet for outlet in listed if isinstance(outlet, ModelAsset)), None)
    if model is not None and is_sweep:
        raise ValueError(
            f"task {task_id!r} is mapped, so the last event of ModelAsset {model.name!r} would be that of the member "
            "that ends last, not of the best one; move it to the outlets of the task that takes the result of best_of"
        )
    if model is not None and not waits:
        raise ValueError(
            f"task {task_id!r} does not wait for its TrainJob, so ModelAsset {model.name!r} would be updated before "
            "the model exists; move it to the outlets of the TrainJobSensor"
        )


class _CheckedPartial(OperatorPartial):
    __slots__ = ()

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> Any:
        self._expand_called = True  # Otherwise Airflow warns after a refusal that it was not.
        task_id, mapped = self.kwargs["task_id"], expand_input.value
        has_job = getattr(self.operator_class, "job_key", None) is not None  # Others promote the best one only.
        is_sweep = has_job and not _names_partition(self.kwargs, mapped)
        check_outlets(task_id, self.kwargs.get("outlets"), is_sweep=is_sweep)
        _check_jobs(task_id, mapped)
        return super()._expand(expand_input, strict=strict)


class ChecksMapping(BaseOperator):
    """Operator whose ``partial(…).expand(…)`` is checked."""

    @classmethod
    def partial(cls, **arguments: Any) -> OperatorPartial:
        """Return the operator without the arguments over which it is mapped."""
        made = super().partial(**arguments)
        made._expand_called = True  # The checked one is expanded in its place.
        return _CheckedPartial(operator_class=made.operator_class, kwargs=made.kwargs, params=made.params)


def _check_jobs(task_id: str, mapped: Any) -> None:
    """Refuse `job` over tasks that return results: Airflow maps over what tasks return, not over their refs."""
    for operator, _ in XComArg.iter_xcom_references(mapped.get("job") if isinstance(mapped, Mapping) else None):
        kind, arguments = getattr(operator, "operator_class", operator), getattr(operator, "partial_kwargs", {})
        waits = arguments.get("wait_for_completion", getattr(kind, "wait_for_completion", True))
        if getattr(kind, "job_key", None) is not None and waits:
            raise ValueError(
                f"task {task_id!r} cannot be mapped over job={operator.task_id}.output, which is the results of the "
                "trainings and not their TrainJobs; put both tasks into a task group, and map the group"
            )


def _names_partition(arguments: Mapping[str, Any], mapped: Any) -> bool:
    """Return whether the members of a mapped task, or the jobs that they wait for, may each have a partition."""
    if isinstance(mapped, XComArg):
        return True  # Its entries are known at run time only.
    entries = [arguments, *([mapped] if isinstance(mapped, Mapping) else mapped)]
    return any(
        isinstance(each, XComArg) or "partition" in each or job_names_partition(each.get("job")) for each in entries
    )


def job_names_partition(job: Any) -> bool:
    """Return whether the output of a task is that of TrainJobs with a partition."""
    operator = getattr(job, "operator", None)
    if operator is None or not operator.is_mapped:
        return "partition" in getattr(operator, "spec", ())
    return _names_partition(operator.partial_kwargs, operator._get_specified_expand_input().value)


def get_run_partition() -> str | None:
    """Return the partition key of the DAG run of the running task; None without one, outside a task and before 3.2."""
    try:
        return get_current_context().get("partition_key")
    except RuntimeError:
        return None


def choose_partition(given: str | None, key: str | None) -> str | None:
    """Return the partition of a task: the rendered argument, or the key of the DAG run."""
    if given == str(None) and key is None:
        raise ValueError(
            "partition is the template of a partition key, and this DAG run has none; start the run with a "
            "partition_key, or remove the argument"
        )
    return key if given is None else given


def _find_last(events: Any, partition: str | None, metric: str | None = None) -> Any:
    """Return the last event of an Asset, or of one partition of it, or the last one that has a metric.

    Airflow does not select events by them.
    """

    def is_wanted(event: Any) -> bool:
        has_metric = metric is None or metric in extract_metrics({"metrics": (event.extra or {}).get("metrics")})
        return has_metric and (partition is None or event.partition_key == partition)

    if partition is None:
        return next(filter(is_wanted, reversed(events)), None)
    limit = _EVENTS
    while True:
        newest = events.ascending(False).limit(limit)
        found = next(filter(is_wanted, newest), None)
        if found is not None or len(newest) < limit:
            return found
        limit *= 10


def update_asset_events(outlets: Iterable[Any], outcome: Outcome, partition: str | None = None) -> None:
    """Write the outcome of a TrainJob to the asset events of the running task, and a partition other than the run's."""
    for asset, event in list_outlet_events(outlets, partition):
        event.extra = {**event.extra, **build_event_extra(asset, outcome)}


def list_outlet_events(outlets: Iterable[Any], partition: str | None) -> list[tuple[Asset, Any]]:
    """Return the Assets among the outlets of the running task with their events, which have this partition."""
    assets = [outlet for outlet in outlets if isinstance(outlet, Asset)]
    if not assets:
        return []
    context = get_current_context()
    events = [(asset, context["outlet_events"][asset]) for asset in assets]
    if partition is not None and partition != get_run_partition():
        for _, event in events:
            event.add_partitions(partition)
    return events


def build_event_extra(asset: Asset, outcome: Outcome) -> dict[str, Any]:
    """Return the data of an Asset's event for a complete TrainJob."""
    extra: dict[str, Any] = {
        "job": outcome.job.name,
        "ref": outcome.ref,
        "metrics": outcome.metrics,
        "artifacts": outcome.artifacts,
        "finished_at": outcome.finished_at,
    }
    if isinstance(asset, ModelAsset):
        extra["artifact_uri"] = outcome.artifacts.get(asset.artifact)
    if outcome.reused:
        extra["reused"] = True
    return extra
