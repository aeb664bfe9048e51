from __future__ import annotations

from trainer_core.testing import BackendContract


class TestContract(BackendContract):
    pass
