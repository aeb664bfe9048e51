"""Names of Airflow's server that lie elsewhere in some of the versions we support (3.1 and later)."""

from __future__ import annotations

from airflow.serialization.serialized_objects import LazyDeserializedDAG

try:
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # before 3.2 the one class does both
    from airflow.serialization.serialized_objects import (  # type: ignore[attr-defined,no-redef]
        SerializedDAG,
    )
    from airflow.serialization.serialized_objects import (
        SerializedDAG as DagSerialization,
    )

__all__ = ["DagSerialization", "LazyDeserializedDAG", "SerializedDAG"]
