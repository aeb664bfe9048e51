"""OpenLineage methods of operators and sensors. OpenLineage itself is imported only when Airflow calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer_core.model.jobs import Outcome

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


class OpenLineageMixin:
    """Reports a task's job to OpenLineage: inputs of the initializers, artifacts as outputs, and how the job ended."""

    outcome: Outcome | None = None
    #: Address of the TrainJob's run in MLflow; empty without one.
    run_url: str = ""
    #: Key of the partition of data; None without one.
    partition: str | None = None

    def get_openlineage_facets_on_start(self, task_instance: Any = None) -> OperatorLineage | None:
        """Return the facets: at the start inputs and source code, at the end also outputs and how the job ended."""
        from airflow_provider.lineage_facets import build_lineage

        spec: Mapping[str, Any] = getattr(self, "spec", {})
        return build_lineage(
            spec.get("initializer") or {}, getattr(self, "code_text", ""), self.outcome, self.run_url, self.partition
        )

    get_openlineage_facets_on_complete = get_openlineage_facets_on_start
    get_openlineage_facets_on_failure = get_openlineage_facets_on_start
