"""LocalProcessBackend implements the backend contract."""

from __future__ import annotations

from trainer_core.testing import BackendContract, Searching


class TestContract(BackendContract):
    pass


class TestSearches(Searching):
    pass
