"""A separate Airflow home for tests: a temporary folder with an SQLite database."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class AirflowHome:
    """Temporary Airflow home. A context manager: on exit, the folder is removed."""

    def __init__(self) -> None:
        #: Value of AIRFLOW_HOME while the home is active.
        self.folder = Path(tempfile.mkdtemp(prefix="trainjob-airflow-"))
        for name in ("dags", "plugins"):
            (self.folder / name).mkdir()
        self._active = False
        self._migrated = False

    def __enter__(self) -> AirflowHome:
        """Return the home."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make Airflow use this home, even if it is already imported; restore the previous settings on exit."""
        if self._active:
            yield
            return
        previous = dict(os.environ)
        self._active = True
        try:
            os.environ.update(self._build_environment())
            _reload_settings()
            yield
        finally:
            self._active = False
            _restore_environment(previous, self._build_environment())
            _reload_settings()

    def migrate(self) -> None:
        """Create the database on the first call. The home must be active."""
        if self._migrated:
            return
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.utils import db

        db.initdb()
        DagBundlesManager().sync_bundles_to_db()
        self._migrated = True

    def _build_environment(self) -> dict[str, str]:
        """Return the variables that Airflow reads first, and those of every path that it derives from its home."""
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


def _restore_environment(previous: Mapping[str, str], names: Mapping[str, str]) -> None:
    """Restore only the variables that were set here, so that changes by the test itself stay."""
    for name in names:
        if name in previous:
            os.environ[name] = previous[name]
        else:
            os.environ.pop(name, None)


def _reload_settings() -> None:
    """Make an imported Airflow read the environment again and connect to the new database."""
    settings = sys.modules.get("airflow.settings")
    if settings is None or getattr(settings, "engine", None) is None:
        return
    settings.dispose_orm(do_log=False)
    settings.configure_vars()
    settings.configure_orm()
