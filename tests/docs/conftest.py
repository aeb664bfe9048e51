"""Where the reader of a page works."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainer_core import LocalProcessBackendConfig, TrainerClient


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in which the page's reader works; no job of the page outlives the test."""
    home = tmp_path / "home"
    monkeypatch.setenv("TRAINJOB_HOME", str(home))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.setenv("AIRFLOW__TRAINJOB__BACKEND", "local")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield work
    client = TrainerClient(LocalProcessBackendConfig(home=home))
    for job in client.list_jobs():
        client.delete_job(job.name)
