"""The backend in the terms of the contract suite: the facts in which it differs."""

from __future__ import annotations

import pytest
from trainjob_folder.config import FolderBackendConfig

pytest.register_assert_rewrite("trainer_core.testing")  # Detailed messages.

from trainer_core import TrainerClient  # noqa: E402
from trainer_core.testing import BackendCase, parametrize_backends  # noqa: E402

CASE = BackendCase(
    "folder",
    lambda folder: TrainerClient(FolderBackendConfig(folder=folder)),
    runs_in_background=False,
    enforces_deadline=False,
    runs_multiple_nodes=False,
    installs_packages=False,
    reads_local_files=False,
    times_log_lines=False,
    reports_resource_use=False,
    limits_memory=False,
    restarts_trainings=False,
    notices_stalls=False,
    knows_versions=False,
)


def pytest_generate_tests(metafunc):
    parametrize_backends([CASE], metafunc)
