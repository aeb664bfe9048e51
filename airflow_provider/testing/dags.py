"""Runs a DAG in the test process and reads the result of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

__all__ = ["AssetUpdate", "FinishedRun", "load_dags", "run_dag"]

#: DAG bundle of the DAGs under test.
_BUNDLE = "trainjob-testing"


@dataclass(frozen=True)
class AssetUpdate:
    """An asset event of a DAG run.

    Attributes:
        name: Name of the Asset.
        uri: URI of the Asset.
        task_id: Task that updated the Asset.
        extra: Data of the event.
    """

    name: str
    uri: str
    task_id: str
    extra: dict[str, Any]


class FinishedRun:
    """A DAG run that has ended.

    Args:
        dag_run: Airflow's DAG run.
    """

    def __init__(self, dag_run: DagRun) -> None:
        self.dag_run = dag_run

    @property
    def state(self) -> str:
        """``success`` or ``failed``."""
        return str(self.dag_run.state)

    @property
    def states(self) -> dict[str, str | None]:
        """State of each task by its id; for a mapped task by ``id[0]``, ``id[1]`` and so on."""
        instances = sorted(self.dag_run.get_task_instances(), key=lambda ti: (ti.task_id, ti.map_index))
        return {_format_task_label(ti): str(ti.state) if ti.state else None for ti in instances}

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """Return an XCom of a task; None if the task did not push it."""
        ti = self.dag_run.get_task_instance(task_id, map_index=map_index)
        if ti is None:
            raise AssertionError(f"task {task_id!r} is not in this run; its tasks: {', '.join(self.states)}")
        return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index)

    @property
    def asset_updates(self) -> list[AssetUpdate]:
        """Asset events of the run, oldest first."""
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        query = (
            select(AssetModel.name, AssetModel.uri, AssetEvent.source_task_id, AssetEvent.extra)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetEvent.source_dag_id == self.dag_run.dag_id, AssetEvent.source_run_id == self.dag_run.run_id)
            .order_by(AssetEvent.id)
        )
        with create_session() as session:
            return [AssetUpdate(*row) for row in session.execute(query)]


def load_dags(folder: str | Path) -> dict[str, DAG]:
    """Read the DAG files of a folder as Airflow does, and return the DAGs by id.

    Raises:
        AssertionError: A file cannot be imported; the message has its error.
    """
    from airflow_provider.testing.compat import DagBag

    bag = DagBag(str(folder))
    if bag.import_errors:
        raise AssertionError("\n".join(f"{file}: {error}" for file, error in sorted(bag.import_errors.items())))
    return dict(bag.dags)


def run_dag(dag: DAG, **arguments: Any) -> FinishedRun:
    """Run a DAG in this process until it ends.

    Args:
        dag: The DAG; it need not be in a file. Its deadline is ignored, because only a scheduler handles deadlines.
        arguments: Arguments of `DAG.test`: `run_conf`, `logical_date`, …
    """
    with _remove_deadline(dag):
        _write_dag(dag)
        return FinishedRun(dag.test(**arguments))


def _write_dag(dag: DAG) -> None:
    """Write a DAG to the metadata database, without which Airflow cannot run it."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session

    from airflow_provider.testing.compat import DagSerialization, LazyDeserializedDAG, SerializedDAG

    with create_session() as session:
        session.merge(DagBundleModel(name=_BUNDLE))
        session.flush()
        SerializedDAG.bulk_write_to_db(_BUNDLE, None, [dag], session=session)
        lazy = LazyDeserializedDAG(data=DagSerialization.to_dict(dag))
        SerializedDagModel.write_dag(lazy, _BUNDLE, None, session=session)


@contextmanager
def _remove_deadline(dag: DAG) -> Iterator[None]:
    """Remove the DAG's deadline for the run: Airflow 3.3 reads it from where only a scheduler stores it, and fails."""
    deadline, dag.deadline = dag.deadline, None
    try:
        yield
    finally:
        dag.deadline = deadline


def _format_task_label(ti: Any) -> str:
    return ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
