"""Limits of tracking that a busy machine does not reach."""

from __future__ import annotations

import pytest

from trainer_core.tracking import http_connection, mlflow_api, reporter, submission


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow answer of the tracking server is no failure; and a failure in one test is forgotten in the next."""
    monkeypatch.setattr(mlflow_api, "_SUBMIT_TIMEOUT", 300.0)
    monkeypatch.setattr(mlflow_api, "_REPORT_TIMEOUT", 300.0)
    monkeypatch.setattr(http_connection, "_CONNECT_TIMEOUT", 300.0)
    monkeypatch.setattr(http_connection, "_TLS_CONNECT_TIMEOUT", 300.0)
    monkeypatch.setattr(reporter, "_FINISH_SECONDS", 300.0)
    monkeypatch.setattr(reporter, "_warned", set())
    monkeypatch.setattr(reporter, "_completed", set())
    monkeypatch.setattr(submission, "_SUBMIT_SECONDS", 300.0)
    monkeypatch.setattr(submission, "_unreachable_until", {})
