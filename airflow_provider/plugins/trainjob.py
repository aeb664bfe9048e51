"""TrainJobPlugin: the TrainJobs page in Airflow's menu.

Every process of Airflow loads its plugins, but only the API server serves pages: FastAPI is imported when it asks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider import links

__all__ = ["TrainJobPlugin"]


class TrainJobPlugin(AirflowPlugin):
    """The page, under "Browse"."""

    name = "trainjob"

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The application that serves the page."""
        from airflow_provider.ui.app import create_app

        return [{"name": "TrainJobs", "app": create_app(), "url_prefix": links.PREFIX}]

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The entry of the menu."""
        return [
            {
                "name": "TrainJobs",
                "href": f"{links.base_path()}{links.PREFIX}/",
                "url_route": "trainjobs",
                "destination": "nav",
                "category": "browse",
                "icon": f"{links.base_path()}{links.PREFIX}/assets/icon.svg",
                "icon_dark_mode": f"{links.base_path()}{links.PREFIX}/assets/icon-dark.svg",
            }
        ]
