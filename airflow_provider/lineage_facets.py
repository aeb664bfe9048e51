"""A TrainJob in the words of OpenLineage. Needs the OpenLineage provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import attr
from airflow.providers.openlineage.conf import is_source_enabled
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    dataset_type_dataset,
    external_query_run,
    source_code_job,
)

from trainer_core.outcome import Outcome

__all__ = ["TrainJobRunFacet", "lineage"]

#: Initializers name what they fetch from these by owner and name; OpenLineage wants the place first.
_HUB = "hf"
_HUB_NAMESPACE = "hf://huggingface.co"


@attr.define
class TrainJobRunFacet(RunFacet):
    """The run facet ``trainjob``: which job it was, and what became of it.

    Attributes:
        name: Of the TrainJob.
        backend: Where it ran.
        namespace: Where the backend kept it.
        status: ``Complete`` or ``Failed``.
        metrics: What it measured.
        diagnosis: Why it failed, in one line.
    """

    name: str
    backend: str
    namespace: str
    status: str
    metrics: dict[str, float] = attr.field(factory=dict)
    diagnosis: str | None = None


def lineage(initializer: Mapping[str, Any], code: str, outcome: Outcome | None) -> OperatorLineage:
    """Return what a task tells.

    Args:
        initializer: What the request fetches, by role, as plain data.
        code: The source that was shipped; empty where the training is no function.
        outcome: What the TrainJob left; None while it is not known.
    """
    return OperatorLineage(
        inputs=[_input(role, source["storage_uri"]) for role, source in sorted(initializer.items())],
        outputs=list(_outputs(outcome)) if outcome else [],
        run_facets=_run_facets(outcome) if outcome else {},
        job_facets=_job_facets(code),
    )


def _input(role: str, uri: str) -> Dataset:
    namespace, name = _place(uri)
    return InputDataset(namespace=namespace, name=name, facets=_kind(role))


def _outputs(outcome: Outcome) -> Iterator[Dataset]:
    for role, uri in sorted(outcome.artifacts.items()):
        namespace, name = _place(uri)
        yield OutputDataset(namespace=namespace, name=name, facets=_kind(role))


def _kind(role: str) -> dict[str, DatasetFacet]:
    return {"datasetType": dataset_type_dataset.DatasetTypeDatasetFacet(datasetType=role.upper())}


def _run_facets(outcome: Outcome) -> dict[str, RunFacet]:
    job = outcome.job
    return {
        "externalQuery": external_query_run.ExternalQueryRunFacet(externalQueryId=job.uid, source=job.backend),
        "trainjob": TrainJobRunFacet(
            name=job.name,
            backend=job.backend,
            namespace=job.namespace,
            status=outcome.status,
            metrics=dict(outcome.metrics),
            diagnosis=str(outcome.diagnosis) if outcome.diagnosis else None,
        ),
    }


def _job_facets(code: str) -> dict[str, JobFacet]:
    if not code or not is_source_enabled():
        return {}
    return {"sourceCode": source_code_job.SourceCodeJobFacet(language="python", sourceCode=code)}


def _place(uri: str) -> tuple[str, str]:
    """Namespace and name of a dataset, as OpenLineage's naming convention splits a URI."""
    parts = urlsplit(uri)
    path = parts.path.lstrip("/")
    if parts.scheme == _HUB:
        return _HUB_NAMESPACE, f"{parts.netloc}/{path}".rstrip("/")
    if parts.scheme == "file":
        return "file", f"/{path}"
    return f"{parts.scheme}://{parts.netloc}", path or "/"
