"""Extra links of a task: its TrainJob on the TrainJobs page, in a dashboard, and in a log store.

The API server reads a link from its XCom, which Airflow pushes when a task leaves its worker: for a task that waits
there, only at its end. The operators therefore push the links right after submission as well.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from trainer_core.model.jobs import TrainJobRef

#: URL path of the TrainJobs page on the API server.
URL_PREFIX = "/trainjobs"
#: XCom with the id of the task's connection; the TrainJobs page uses the same connection.
CONN_ID_KEY = "trainjob_conn_id"
#: Connection fields with URL templates.
URL_FIELDS = ("dashboard_url", "logs_url")


class JobLink(BaseOperatorLink):
    """Link to the job on the TrainJobs page."""

    name = "TrainJob"
    xcom_key = "trainjob_link"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL of the job's page."""
        task = {name: getattr(ti_key, name) for name in ("dag_id", "run_id", "task_id")}
        index = -1 if ti_key.map_index is None else ti_key.map_index
        base = conf.get("api", "base_url", fallback="/").rstrip("/")
        return f"{base}{URL_PREFIX}/job?{urlencode({**task, 'map_index': index}, quote_via=quote)}"


class _UrlTemplateLink(BaseOperatorLink):
    """Link from a URL template of the connection."""

    field: str

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL for the task's job; empty without a template or a job."""
        memory = getattr(operator, "_memory", None)  # That of the API server has none.
        ref = memory.ref if memory is not None else None
        if ref is None:
            return ""
        template = operator.hook.link_templates.get(self.field)
        return render_url(template, ref) if template else ""


class DashboardLink(_UrlTemplateLink):
    """Link to the job in a dashboard of the cluster."""

    name = "Dashboard"
    xcom_key = "trainjob_dashboard_link"
    field = "dashboard_url"


class LogsLink(_UrlTemplateLink):
    """Link to the job's log lines in a log store."""

    name = "Logs of the nodes"
    xcom_key = "trainjob_logs_link"
    field = "logs_url"


class MlflowLink(BaseOperatorLink):
    """Link to the job's run in MLflow."""

    name = "MLflow run"
    xcom_key = "trainjob_mlflow_link"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL of the run; empty without a run."""
        return sanitize_url(getattr(operator, "run_url", ""))


LINKS = (JobLink(), DashboardLink(), LogsLink(), MlflowLink())


def render_url(template: str, ref: TrainJobRef) -> str:
    """Return a URL template with ``${name}``, ``${namespace}``, ``${uid}`` and ``${backend}`` of the job filled in."""
    fields = {name: quote(getattr(ref, name), safe="") for name in ("name", "namespace", "uid", "backend")}
    return sanitize_url(Template(str(template)).safe_substitute(fields))


def sanitize_url(url: Any) -> str:
    """Return a URL if its scheme is http or https, else an empty string.

    A person who can edit connections or write XComs must not be able to run scripts in the browsers of other users.
    """
    try:
        return url if urlsplit(url).scheme in ("http", "https") else ""
    except (ValueError, TypeError, AttributeError):
        return ""


def push_links(ti: Any, operator: Any, conn_id: str | None) -> None:
    """Push the links and the connection id. Call it right after submission."""
    ti.xcom_push(key=CONN_ID_KEY, value=conn_id)
    select_links(operator, ti)
    for link in operator.operator_extra_links:
        ti.xcom_push(key=link.xcom_key, value=link.get_link(operator, ti_key=ti))


def select_links(operator: Any, ti: Any) -> None:
    """Keep only the links of an operator that have a URL. Airflow pushes an XCom for each link, even an empty one.

    Call it when a worker begins with the task, and again once the job is known.
    """
    operator.operator_extra_links = tuple(link for link in LINKS if link.get_link(operator, ti_key=ti))


def get_base_path() -> str:
    """Return the URL path under which Airflow is served, without a trailing slash."""
    return urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
