"""The attacks of `make attack` with few rounds and a fixed seed."""

from __future__ import annotations

import random

import pytest
from attack_scenarios import SCENARIOS

# Many rounds.
pytestmark = pytest.mark.deep


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each.short], ids=lambda each: each.play.__name__)
def test_an_attack_breaks_no_promise(scenario, tmp_path, monkeypatch):
    # Nothing listens at the addresses that are used: repeating a connection only takes time.
    for name in ("PIP_RETRIES", "UV_HTTP_RETRIES"):
        monkeypatch.setenv(name, "0")
    assert scenario.play(scenario.short, random.Random(1), tmp_path) == []  # noqa: S311 -- a seed to repeat the choices
