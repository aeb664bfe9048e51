"""RunaiBackend implements the backend contract."""

from __future__ import annotations

import pytest

from trainer_core.testing import BackendContract, Searching

# tests/kubernetes has the client, informer, job status and logs that this backend shares with Kubernetes.
pytestmark = pytest.mark.deep


class TestContract(BackendContract):
    pass


class TestSearches(Searching):
    pass
