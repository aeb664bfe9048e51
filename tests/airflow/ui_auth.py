"""Airflow's simple auth manager, and DAGs that are closed to somebody: the simple one knows no permission by DAG."""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class ByDag(SimpleAuthManager):
    """Who is called "outsider" may not even read the DAGs whose name begins with "closed"."""

    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        dag_id = (details and details.id) or ""
        if user.username == "outsider" and dag_id.startswith("closed"):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
