"""One Airflow for the files of this folder, which `pytest_xdist_make_scheduler` gives to one worker."""

from __future__ import annotations

import pathlib

import pytest
from standalone import EXAMPLES, a_running_airflow

_HERE = pathlib.Path(__file__).parent
_DIGITS = ("digits", "registry", "retraining", "ingest_digits", "retrain_digits", "retrain_digits_one_task")
_ENERGY = ("forecast", "energy", "nightly_forecast", "promote_forecast", "approve_forecast", "retrain_on_drift")
_PARTITIONS = ("forecast_of_each_day",)
#: Seconds without a heartbeat after which the triggers of a triggerer move to another one.
_QUICKLY = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8"}


@pytest.fixture(scope="package")
def drift(tmp_path_factory):
    """File with which a monitor reports drift."""
    return tmp_path_factory.mktemp("monitor") / "drift.json"


@pytest.fixture(scope="package")
def airflow(tmp_path_factory, drift):
    files = [*_HERE.glob("*_dags.py"), *(EXAMPLES / f"{name}.py" for name in (*_DIGITS, *_ENERGY, *_PARTITIONS))]
    environment = {**_QUICKLY, "ENERGY_DRIFT_FILE": str(drift)}
    with a_running_airflow(tmp_path_factory.mktemp("whole"), files, dags=19, **environment) as running:
        yield running
