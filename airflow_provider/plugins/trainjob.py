"""TrainJobPlugin: adds the TrainJobs page to Airflow's menu.

Every Airflow process loads its plugins, but only the API server serves pages; FastAPI is therefore imported on use.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider import links

__all__ = ["TrainJobPlugin"]


class TrainJobPlugin(AirflowPlugin):
    """Plugin that adds the TrainJobs page to the Browse menu."""

    name = "trainjob"

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Application that serves the page."""
        from airflow_provider.ui.app import create_app

        return [{"name": "TrainJobs", "app": create_app(), "url_prefix": links.URL_PREFIX}]

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Menu entry of the page."""
        return [
            {
                "name": "TrainJobs",
                "href": f"{links.get_base_path()}{links.URL_PREFIX}/",
                "url_route": "trainjobs",
                "destination": "nav",
                "category": "browse",
                "icon": f"{links.get_base_path()}{links.URL_PREFIX}/assets/icon.svg",
                "icon_dark_mode": f"{links.get_base_path()}{links.URL_PREFIX}/assets/icon-dark.svg",
            }
        ]
