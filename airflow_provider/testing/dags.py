"""Running a DAG in this process, and reading what its run left."""

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

#: The bundle that DAGs of tests belong to.
_BUNDLE = "trainjob-testing"


@dataclass(frozen=True)
class AssetUpdate:
    """An Asset that a run made new.

    Attributes:
        name: Of the Asset.
        uri: Of the Asset.
        task_id: The task that made it new.
        extra: What that task said of it.
    """

    name: str
    uri: str
    task_id: str
    extra: dict[str, Any]


class FinishedRun:
    """A DAG run that has ended.

    Args:
        dag_run: What Airflow knows of it.
    """

    def __init__(self, dag_run: DagRun) -> None:
        self.dag_run = dag_run

    @property
    def state(self) -> str:
        """``success`` or ``failed``."""
        return str(self.dag_run.state)

    @property
    def states(self) -> dict[str, str | None]:
        """The state of each task, by its id; those of a mapped task by ``id[0]`` and so on."""
        found = sorted(self.dag_run.get_task_instances(), key=lambda ti: (ti.task_id, ti.map_index))
        return {_label(ti): str(ti.state) if ti.state else None for ti in found}

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """Return what a task pushed, None if nothing."""
        ti = self.dag_run.get_task_instance(task_id, map_index=map_index)
        if ti is None:
            raise AssertionError(f"no task {task_id!r} in this run; it has {', '.join(self.states)}")
        return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index)

    @property
    def asset_updates(self) -> list[AssetUpdate]:
        """The Assets that it made new, oldest first."""
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
    """Read the DAG files of a folder as Airflow does, and return their DAGs by id.

    Raises:
        AssertionError: A file cannot be read; its error is shown.
    """
    from airflow_provider.testing.serialized import DagBag

    bag = DagBag(str(folder))
    if bag.import_errors:
        raise AssertionError("\n".join(f"{file}: {error}" for file, error in sorted(bag.import_errors.items())))
    return dict(bag.dags)


def run_dag(dag: DAG, **arguments: Any) -> FinishedRun:
    """Run a DAG to its end, in this process.

    Args:
        dag: It need not lie in a file. Deadlines are the scheduler's affair, and have no effect here.
        arguments: As for `DAG.test`: `run_conf`, `logical_date`, …
    """
    with _without_deadline(dag):
        _write_dag(dag)
        return FinishedRun(dag.test(**arguments))


def _write_dag(dag: DAG) -> None:
    """Write a DAG into the metadata database: what is not there, Airflow does not run."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session

    from airflow_provider.testing.serialized import DagSerialization, LazyDeserializedDAG, SerializedDAG

    with create_session() as session:
        session.merge(DagBundleModel(name=_BUNDLE))
        session.flush()
        SerializedDAG.bulk_write_to_db(_BUNDLE, None, [dag], session=session)
        lazy = LazyDeserializedDAG(data=DagSerialization.to_dict(dag))
        SerializedDagModel.write_dag(lazy, _BUNDLE, None, session=session)


@contextmanager
def _without_deadline(dag: DAG) -> Iterator[None]:
    """Airflow 3.3 looks a deadline up where only a scheduler puts it, and a run in this process could not end."""
    deadline, dag.deadline = dag.deadline, None
    try:
        yield
    finally:
        dag.deadline = deadline


def _label(ti: Any) -> str:
    return ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
