"""RunaiBackend implements the backend contract."""

from __future__ import annotations

import pytest

from trainer_core.testing import BackendContract, Searching

# `make test` runs the contract on Kubernetes, whose client, informer, job status and logs this backend shares.
pytestmark = pytest.mark.slow


class TestContract(BackendContract):
    pass


class TestSearches(Searching):
    pass
