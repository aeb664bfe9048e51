"""Converts a TrainJob to OpenLineage datasets and facets. Needs Airflow's OpenLineage provider."""

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

from trainer_core.model.jobs import Outcome

#: ``hf://`` URIs have no host; OpenLineage requires one in the namespace.
_HUB = "hf"
_HUB_NAMESPACE = "hf://huggingface.co"


@attr.define
class TrainJobRunFacet(RunFacet):
    """Run facet ``trainjob``: the job and how it ended."""

    name: str
    backend: str
    namespace: str
    status: str
    metrics: dict[str, float] = attr.field(factory=dict)
    diagnosis: str | None = None
    #: Address of the job's run in MLflow.
    run_url: str | None = None
    partition: str | None = None


def build_lineage(
    initializer: Mapping[str, Any], code: str, outcome: Outcome | None, run_url: str, partition: str | None = None
) -> OperatorLineage:
    """Return the OpenLineage data of a task."""
    return OperatorLineage(
        inputs=[_build_input(role, source["storage_uri"]) for role, source in sorted(initializer.items())],
        outputs=list(_build_outputs(outcome)) if outcome else [],
        run_facets=_build_run_facets(outcome, run_url, partition) if outcome else {},
        job_facets=_build_job_facets(code),
    )


def _build_input(role: str, uri: str) -> Dataset:
    namespace, name = _split_uri(uri)
    return InputDataset(namespace=namespace, name=name, facets=_build_type_facet(role))


def _build_outputs(outcome: Outcome) -> Iterator[Dataset]:
    for role, uri in sorted(outcome.artifacts.items()):
        namespace, name = _split_uri(uri)
        yield OutputDataset(namespace=namespace, name=name, facets=_build_type_facet(role))


def _build_type_facet(role: str) -> dict[str, DatasetFacet]:
    return {"datasetType": dataset_type_dataset.DatasetTypeDatasetFacet(datasetType=role.upper())}


def _build_run_facets(outcome: Outcome, run_url: str, partition: str | None) -> dict[str, RunFacet]:
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
            run_url=run_url or None,
            partition=partition,
        ),
    }


def _build_job_facets(code: str) -> dict[str, JobFacet]:
    if not code or not is_source_enabled():
        return {}
    return {"sourceCode": source_code_job.SourceCodeJobFacet(language="python", sourceCode=code)}


def _split_uri(uri: str) -> tuple[str, str]:
    """Return namespace and name of a dataset, following OpenLineage's naming convention."""
    parts = urlsplit(uri)
    path = parts.path.lstrip("/")
    if parts.scheme == _HUB:
        return _HUB_NAMESPACE, f"{parts.netloc}/{path}".rstrip("/")
    if parts.scheme == "file":
        return "file", f"/{path}"
    return f"{parts.scheme}://{parts.netloc}", path or "/"
