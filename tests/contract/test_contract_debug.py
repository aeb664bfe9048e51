"""DebugBackend implements the backend contract."""

from __future__ import annotations

import tempfile

from trainer_core import CustomTrainer, DebugBackendConfig, Name, TrainerClient
from trainer_core.testing import BackendContract, Searching


class TestContract(BackendContract):
    pass


class TestSearches(Searching):
    pass


def _train():
    pass


def test_a_deleted_job_that_fetched_nothing_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    client = TrainerClient(DebugBackendConfig())
    client.train("python", trainer=CustomTrainer(func=_train), options=[Name("job")])
    client.delete_job("job")
    assert list(tmp_path.iterdir()) == []
