"""The buttons of a task in Airflow: its TrainJob on the TrainJobs page, in a dashboard, and in a store of logs.

The API server knows a link by its XCom alone. Airflow writes that XCom when a task leaves its worker, which for one
that waits there is at its end; so the task also writes it as soon as there is a job.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow_provider.hooks.trainjob import TrainJobHook
    from trainer_core.ref import TrainJobRef

__all__ = [
    "CONN_ID",
    "LINKS",
    "PREFIX",
    "TEMPLATES",
    "DashboardLink",
    "JobLink",
    "LogsLink",
    "address",
    "base_path",
    "push",
    "safe",
]

#: Where the API server serves the page.
PREFIX = "/trainjobs"
#: XCom: the connection by which the task reaches its job; the page reaches it by the same one.
CONN_ID = "trainjob_conn_id"
#: Fields of a connection that hold templates of addresses.
TEMPLATES = ("dashboard_url", "logs_url")


class JobLink(BaseOperatorLink):
    """The job on the TrainJobs page of Airflow."""

    name = "TrainJob"
    xcom_key = "trainjob_link"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the page of a task instance's job."""
        task = {name: getattr(ti_key, name) for name in ("dag_id", "run_id", "task_id")}
        index = -1 if ti_key.map_index is None else ti_key.map_index
        base = conf.get("api", "base_url", fallback="/").rstrip("/")
        return f"{base}{PREFIX}/job?{urlencode({**task, 'map_index': index}, quote_via=quote)}"


class _TemplateLink(BaseOperatorLink):
    """An address that the connection has a template of."""

    field: str

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address for the job of this task; empty where there is no template or no job."""
        ref = getattr(operator, "_ref", None)
        if ref is None:
            return ""
        template = operator.hook.link_templates.get(self.field)
        return address(template, ref) if template else ""


class DashboardLink(_TemplateLink):
    """The job in a dashboard of the cluster."""

    name = "Dashboard"
    xcom_key = "trainjob_dashboard_link"
    field = "dashboard_url"


class LogsLink(_TemplateLink):
    """The job's lines in a store of logs."""

    name = "Logs of the nodes"
    xcom_key = "trainjob_logs_link"
    field = "logs_url"


LINKS = (JobLink(), DashboardLink(), LogsLink())


def address(template: str, ref: TrainJobRef) -> str:
    """Fill in ``${name}``, ``${namespace}``, ``${uid}`` and ``${backend}``; anything else stays as it is."""
    fields = {name: quote(getattr(ref, name), safe="") for name in ("name", "namespace", "uid", "backend")}
    return safe(Template(str(template)).safe_substitute(fields))


def safe(url: Any) -> str:
    """Return an address that may become a link; empty for any other.

    Only http and https: whoever edits connections, or writes XComs, must not run scripts in the browsers of those who
    look at tasks.
    """
    try:
        return url if urlsplit(url).scheme in ("http", "https") else ""
    except (ValueError, TypeError, AttributeError):
        return ""


def push(ti: Any, operator: Any, hook: TrainJobHook) -> None:
    """Write down the links that there are, and how the job is reached. To be called right after submitting."""
    ti.xcom_push(key=CONN_ID, value=hook.trainjob_conn_id)
    for link in LINKS:
        url = link.get_link(operator, ti_key=ti)
        if url:
            ti.xcom_push(key=link.xcom_key, value=url)


def base_path() -> str:
    """Return the path under which Airflow itself is served, without the last slash."""
    return urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
