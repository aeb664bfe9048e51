"""The contract suite: tests that every backend must pass. Import it to test your own backend; requires pytest.

In conftest.py::

    pytest.register_assert_rewrite("trainer_core.testing")  # detailed assertion messages
    from trainer_core.testing import BackendCase, on_each

    def pytest_generate_tests(metafunc):
        on_each([BackendCase("mine", lambda folder: TrainerClient(MyConfig(home=folder)))], metafunc)

and in test_contract.py::

    from trainer_core.testing import BackendContract

    class TestContract(BackendContract):
        pass
"""

from __future__ import annotations

from trainer_core.testing.case import BackendCase, Contract, applies_to, parametrize_backends
from trainer_core.testing.checkpointing import Checkpointing
from trainer_core.testing.debugging import Debugging
from trainer_core.testing.exactly_once import ExactlyOnce
from trainer_core.testing.failures import Failures
from trainer_core.testing.identity import Identity
from trainer_core.testing.initializers import Initializers
from trainer_core.testing.lifecycle import Lifecycle
from trainer_core.testing.logs import Logs
from trainer_core.testing.memory import MemoryOfAttempts
from trainer_core.testing.projects import Projects
from trainer_core.testing.resource_use import ResourceReports
from trainer_core.testing.restarting import Restarting
from trainer_core.testing.results import Results
from trainer_core.testing.reusing import Reusing
from trainer_core.testing.searching import EarlyStops, Searching
from trainer_core.testing.stalls import Stalls
from trainer_core.testing.validation import Validation
from trainer_core.testing.waiting import Waiting

__all__ = ["BackendCase", "BackendContract", "Contract", "Searching", "applies_to", "parametrize_backends"]


class BackendContract(
    Identity,
    ExactlyOnce,
    Results,
    Projects,
    ResourceReports,
    Logs,
    Failures,
    Lifecycle,
    Waiting,
    Initializers,
    Checkpointing,
    MemoryOfAttempts,
    Restarting,
    Stalls,
    Reusing,
    Debugging,
    EarlyStops,
    Validation,
):
    """All tests of the contract."""
