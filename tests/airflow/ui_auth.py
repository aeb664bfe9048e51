"""Airflow's simple auth manager, extended by DAGs that one user cannot read."""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class ByDag(SimpleAuthManager):
    """The user "outsider" cannot read DAGs whose id begins with "closed"."""

    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        dag_id = (details and details.id) or ""
        if user.username == "outsider" and dag_id.startswith("closed"):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
