"""What tasks of ours tell OpenLineage; asked for only where its provider is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer_core.outcome import Outcome

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

__all__ = ["ReportsLineage"]


class ReportsLineage:
    """A task that runs or waits for a TrainJob, as OpenLineage sees it: data in, model out, and how the job ended.

    Attributes:
        outcome: What the TrainJob left, once that is known.
    """

    outcome: Outcome | None = None

    def get_openlineage_facets_on_start(self) -> OperatorLineage | None:
        """What is known when the task begins: what will be read, and the code."""
        return self._lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage | None:
        """What is known when the task has succeeded."""
        return self._lineage()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage | None:
        """What is known when the task has failed."""
        return self._lineage()

    def _lineage(self) -> OperatorLineage | None:
        from airflow_provider.lineage_facets import lineage

        spec: Mapping[str, Any] = getattr(self, "spec", {})
        return lineage(spec.get("initializer") or {}, getattr(self, "code_text", ""), self.outcome)
