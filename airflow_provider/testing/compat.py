"""Server-side names whose location in Airflow differs between the supported versions (3.1 and later)."""

from __future__ import annotations

from airflow.serialization.serialized_objects import LazyDeserializedDAG

try:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # before 3.2, where one class serializes a DAG and is the serialized DAG
    from airflow.models.dagbag import DagBag  # type: ignore[no-redef]
    from airflow.serialization.serialized_objects import (  # type: ignore[assignment,attr-defined]
        SerializedDAG,
        SerializedDAG as DagSerialization,
    )

__all__ = ["DagBag", "DagSerialization", "LazyDeserializedDAG", "SerializedDAG"]
