"""The backends of the house; one joins by one line."""

from __future__ import annotations

import pytest

from trainer_core import DebugBackendConfig, LocalProcessBackendConfig, TrainerClient

# Before the suite is imported: failed assertions in it show their values.
pytest.register_assert_rewrite("trainer_core.testing")

from trainer_core.testing import BackendCase, on_each  # noqa: E402 -- see above

CASES = (
    BackendCase("local", lambda folder: TrainerClient(LocalProcessBackendConfig(home=folder))),
    BackendCase(
        "debug",
        lambda _: TrainerClient(DebugBackendConfig()),
        outlives_its_client=False,
        runs_beside_its_client=False,
        runs_every_node=False,
        installs_packages=False,
    ),
)


def pytest_generate_tests(metafunc):
    on_each(CASES, metafunc)
