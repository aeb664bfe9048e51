"""The contract that every backend keeps, as tests, so that others can prove theirs. Needs pytest.

In conftest.py::

    pytest.register_assert_rewrite("trainer_core.testing")  # failed assertions show their values
    from trainer_core.testing import BackendCase, on_each

    def pytest_generate_tests(metafunc):
        on_each([BackendCase("mine", lambda folder: TrainerClient(MyConfig(home=folder)))], metafunc)

and in test_contract.py::

    from trainer_core.testing import BackendContract

    class TestContract(BackendContract):
        pass
"""

from __future__ import annotations

from trainer_core.testing.case import BackendCase, Contract, on_each, where
from trainer_core.testing.data import Data
from trainer_core.testing.failures import Failures
from trainer_core.testing.identity import Identity
from trainer_core.testing.lifecycle import Lifecycle
from trainer_core.testing.logs import Logs
from trainer_core.testing.once import ExactlyOnce
from trainer_core.testing.refusals import Refusals
from trainer_core.testing.results import Results
from trainer_core.testing.waits import Waits

__all__ = ["BackendCase", "BackendContract", "Contract", "on_each", "where"]


class BackendContract(Identity, ExactlyOnce, Results, Logs, Failures, Lifecycle, Waits, Data, Refusals):
    """Every test of the contract."""
