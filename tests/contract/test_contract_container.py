"""ContainerBackend implements the backend contract."""

from __future__ import annotations

import pytest

from trainer_core.testing import BackendContract

pytestmark = pytest.mark.slow


class TestContract(BackendContract):
    pass
