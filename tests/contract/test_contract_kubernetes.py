"""KubernetesBackend implements the backend contract."""

from __future__ import annotations

import pytest

from trainer_core.testing import BackendContract, Searching

# 180 jobs in pods of the double. `make test` runs the same contract on `local`, and tests/kubernetes.
pytestmark = pytest.mark.slow


class TestContract(BackendContract):
    pass


class TestSearches(Searching):
    pass
