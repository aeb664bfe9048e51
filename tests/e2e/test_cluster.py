"""The contract suite on a real cluster."""

from __future__ import annotations

import pytest

from trainer_core.testing import BackendContract

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("empty_namespace")]


class TestContract(BackendContract):
    pass
