"""What differs between the supported versions of Airflow (3.1 and later), or follows from its settings."""

from __future__ import annotations

from airflow.configuration import conf

try:
    from airflow.sdk.exceptions import (
        AirflowException as AirflowException,
        AirflowFailException as AirflowFailException,
        AirflowNotFoundException as AirflowNotFoundException,
        AirflowSensorTimeout as AirflowSensorTimeout,
        AirflowSkipException as AirflowSkipException,
        AirflowTaskTimeout as AirflowTaskTimeout,
        TaskDeferralError as TaskDeferralError,
        TaskDeferralTimeout as TaskDeferralTimeout,
        TaskDeferred as TaskDeferred,
        XComNotFound as XComNotFound,
    )
except ImportError:  # before 3.2
    from airflow.exceptions import (  # type: ignore[no-redef,attr-defined]
        AirflowException as AirflowException,
        AirflowFailException as AirflowFailException,
        AirflowNotFoundException as AirflowNotFoundException,
        AirflowSensorTimeout as AirflowSensorTimeout,
        AirflowSkipException as AirflowSkipException,
        AirflowTaskTimeout as AirflowTaskTimeout,
        TaskDeferralError as TaskDeferralError,
        TaskDeferralTimeout as TaskDeferralTimeout,
        TaskDeferred as TaskDeferred,
        XComNotFound as XComNotFound,
    )

#: Seconds between two reports of a worker. Airflow fails a task that continues before its worker has reported that it
#: paused, which can be that much later, and more on a busy machine: https://github.com/apache/airflow/issues/72716.
REPORT_SECONDS = float(conf.getint("workers", "min_heartbeat_interval", fallback=5))
