"""TrainJobPlugin: adds the TrainJobs page to Airflow's menu.

Every Airflow process loads its plugins, but only the API server serves pages; FastAPI is therefore imported on use.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider import links

__all__ = ["TrainJobPlugin"]

#: Classes of the tasks that submit a TrainJob.
_OPERATORS = ["TrainJobOperator", "InitializeOperator", "TrainJobDecoratedOperator"]
#: Airflow's page replaces these in the address of a tab.
_TASK_QUERY = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"


class TrainJobPlugin(AirflowPlugin):
    """Plugin that adds the TrainJobs page to the Browse menu."""

    name = "trainjob"

    @cached_property
    def deadline_references(self) -> list[Any]:  # type: ignore[override]
        """Reference of `airflow_provider.deadlines.slower_than_usual`."""
        from airflow_provider.deadlines import MultipleOfAverageRuntime

        return [MultipleOfAverageRuntime]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Application that serves the page."""
        from airflow_provider.ui.app import create_app

        return [{"name": "TrainJobs", "app": create_app(), "url_prefix": links.URL_PREFIX}]

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Menu entry of the page, and a tab of the tasks that submit a TrainJob, where Airflow can limit it to them."""
        from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse

        page = f"{links.get_base_path()}{links.URL_PREFIX}"
        icons = {"icon": f"{page}/assets/icon.svg", "icon_dark_mode": f"{page}/assets/icon-dark.svg"}
        menu = {"name": "TrainJobs", "href": f"{page}/", "url_route": "trainjobs", "destination": "nav"}
        tab = {"name": "TrainJob", "href": f"{page}/job?{_TASK_QUERY}", "url_route": "trainjob"}
        tab |= {"destination": "task_instance"}
        views: list[dict[str, Any]] = [{**menu, **icons, "category": "browse"}]
        if "applies_to" in ExternalViewResponse.model_fields:  # Otherwise each task would have the tab.
            views.append({**tab, **icons, "applies_to": {"operators": _OPERATORS}})
        return views
