"""Names of Airflow's server that lie elsewhere in some of the versions we support (3.1 and later)."""

from __future__ import annotations

from airflow.serialization.serialized_objects import LazyDeserializedDAG

try:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # before 3.2; there one class serialises and is the serialised DAG
    from airflow.models.dagbag import DagBag  # type: ignore[no-redef]
    from airflow.serialization.serialized_objects import (  # type: ignore[attr-defined]
        SerializedDAG,
    )
    from airflow.serialization.serialized_objects import (  # type: ignore[assignment,attr-defined]
        SerializedDAG as DagSerialization,
    )

__all__ = ["DagBag", "DagSerialization", "LazyDeserializedDAG", "SerializedDAG"]
