"""The contract suite on a real cluster."""

from __future__ import annotations

import pytest

from trainer_core.testing import BackendContract

# A cluster may pull images and add nodes.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.usefixtures("empty_namespace")]


class TestContract(BackendContract):
    pass
