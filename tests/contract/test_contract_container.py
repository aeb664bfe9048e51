"""ContainerBackend implements the backend contract."""

from __future__ import annotations

import container_engine
import pytest

from trainer_core.backends.container import names
from trainer_core.testing import BackendContract, Searching

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _remove_namespace(tmp_path):
    """Each namespace has a volume that stays, and an engine has 2,048 locks for volumes and containers."""
    yield
    namespace = container_engine.namespace(tmp_path / "state")
    container_engine.engine().remove_volume(names.engine_volume(namespace))


class TestContract(BackendContract):
    pass


class TestSearches(Searching):
    pass
