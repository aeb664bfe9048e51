"""An Airflow home of its own: a temporary folder, an SQLite database, and nothing of the user's."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["AirflowHome"]


class AirflowHome:
    """A context manager: the folder is removed at its end.

    Attributes:
        folder: What AIRFLOW_HOME is while it is in force.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trainjob-airflow-"))
        for name in ("dags", "plugins"):
            (self.folder / name).mkdir()
        self._in_force = False
        self._migrated = False

    def __enter__(self) -> AirflowHome:
        """Do nothing more: the folder is there."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Make Airflow use it, also one that was imported before; afterwards Airflow is what it was."""
        if self._in_force:
            yield
            return
        before = dict(os.environ)
        self._in_force = True
        try:
            os.environ.update(self._environment())
            _read_settings_again()
            yield
        finally:
            self._in_force = False
            _restore(before, self._environment())
            _read_settings_again()

    def migrate(self) -> None:
        """Make the database, once; to be called while it is in force."""
        if self._migrated:
            return
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.utils import db

        db.initdb()
        DagBundlesManager().sync_bundles_to_db()
        self._migrated = True

    def _environment(self) -> dict[str, str]:
        """What Airflow must read before anything else, and every folder and address it derives from its home."""
        return {
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.folder / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.folder}/airflow.db",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"sqlite+aiosqlite:///{self.folder}/airflow.db",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }


def _restore(before: Mapping[str, str], names: Mapping[str, str]) -> None:
    """Put back only what was changed here: the test's own changes are for others to undo."""
    for name in names:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)


def _read_settings_again() -> None:
    """An Airflow that is imported already has read the environment; its connections lead to the old database."""
    settings = sys.modules.get("airflow.settings")
    if settings is None or getattr(settings, "engine", None) is None:
        return
    settings.dispose_orm(do_log=False)
    settings.configure_vars()
    settings.configure_orm()
