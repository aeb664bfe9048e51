"""The TrainJob that a task names, and its place: what the first try resolved holds for later tries and sensors."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_provider.compat import XComNotFound
from trainer_core.base import naming, validation
from trainer_core.base.errors import JobElsewhereError, JobNotFoundError
from trainer_core.base.secrets import redact
from trainer_core.model.config import ClusterConfig
from trainer_core.model.jobs import TrainJobRef

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient

#: Key of a TrainJob's partition in the data of its ref.
PARTITION_KEY = "partition"


class TaskRef(PlainXComArg):
    """XCom with the ref of a task's TrainJob; None if the task has submitted none."""

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """Return the ref when the task that uses it runs."""
        try:
            return super().resolve(context)
        except XComNotFound:
            return None


def to_template_value(value: Any, search_key: str = "best_ref", *, is_ref: bool = False) -> Any:
    """Return a value that Airflow can render: a ref as a dict, because Airflow does not render unknown objects.

    The result of a task that has a TrainJob, or a search, stands for its ref. What is no template is checked: a ref, or
    a name unless it `is_ref`.
    """
    if isinstance(value, PlainXComArg):
        return _find_ref(value, search_key)
    # Airflow walks through every value of a template field.
    validation.check_size("job", value)
    if not isinstance(value, ResolveMixin) and not any(mark in str(value) for mark in ("{{", "{%")):
        job = TrainJobRef.from_dict(parse_ref_data(value)) if is_ref else parse_job(value)
        if isinstance(job, str):
            naming.validate_name(job)
    return value.to_dict() if isinstance(value, TrainJobRef) else value


def _find_ref(output: PlainXComArg, search_key: str) -> PlainXComArg:
    operator = output.operator
    key = getattr(getattr(operator, "operator_class", operator), "job_key", None)
    if key is None or output.key not in (BaseXCom.XCOM_RETURN_KEY, key):
        return output
    if operator.is_mapped:
        raise ValueError(
            f"job: task {operator.task_id!r} is mapped and has several TrainJobs; put both tasks into a task group, "
            "and map the group"
        )
    return TaskRef(operator, search_key if key == "best_ref" else key)


def parse_job(value: Any) -> str | TrainJobRef:
    """Return the name or the ref in a rendered `job` argument."""
    data = parse_ref_data(value) if not isinstance(value, str) or value.lstrip().startswith("{") else value
    return data if isinstance(data, str) and data.strip() else TrainJobRef.from_dict(data)


def parse_ref_data(value: Any) -> Any:
    """Return a rendered ref as a dict. Templates render to strings: JSON, or the repr of a dict."""
    if isinstance(value, TrainJobRef):
        return value.to_dict()
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value.strip())
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"{redact(value)} is not a TrainJob ref: expected a dict with backend, namespace, name and uid"
        ) from error


def describe_place(client: TrainerClient) -> dict[str, str]:
    """Return backend, and of a cluster also context, namespace and identity of its API server, as JSON data."""
    config = client.config
    place = client.backend.get_place(None) if isinstance(config, ClusterConfig) else None
    if place is None or not isinstance(config, ClusterConfig):
        return {"backend": config.backend}
    server, _, namespace = place.partition("/")
    context = config.context or ("of the pod" if config.in_cluster else "default")
    return {"backend": config.backend, "context": context, "namespace": namespace, "server": server}


def build_ref_data(client: TrainerClient, ref: TrainJobRef, partition: str | None = None) -> dict[str, Any]:
    """Return a ref as JSON data with the cluster that it was resolved in, for `check_place` in another process.

    The partition of the TrainJob is for the events of a sensor, and for the TrainJobs page.
    """
    named = {} if partition is None else {PARTITION_KEY: partition}
    return {**describe_place(client), **ref.to_dict(), **named}


def check_place(saved: Mapping[str, Any], client: TrainerClient, *, submits: bool = False) -> None:
    """Refuse a client that does not lead to the place that an earlier process resolved.

    One cluster can have several addresses: a client that finds the TrainJob is accepted.
    """
    here = describe_place(client)
    if saved["backend"] != here["backend"]:
        raise _build_error(saved, here)
    if "server" not in saved or "server" not in here:
        return
    if submits and saved["namespace"] != here["namespace"]:
        raise _build_error(saved, here)
    if saved["server"] == here["server"]:
        return
    try:
        client.observe(TrainJobRef.from_dict(saved))
    except (JobNotFoundError, ValueError):
        raise _build_error(saved, here) from None


def _build_error(saved: Mapping[str, Any], here: Mapping[str, Any]) -> JobElsewhereError:
    name = saved.get("name")
    subject = f"TrainJob {name!r}" if name else "the TrainJob of this task"
    return JobElsewhereError(
        f"{subject} was submitted to {_format(saved)}, and this process resolves {_format(here)}; restore the "
        "connection or setting, or start a new DAG run to train elsewhere"
    )


def _format(place: Mapping[str, Any]) -> str:
    text = f"backend {place['backend']!r}"
    if "server" in place:
        text += f" (context {place['context']!r}, namespace {place['namespace']!r}, server {place['server'][:8]})"
    return text
