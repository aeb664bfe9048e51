"""A search on this machine whose drivers are killed. `make attack` kills fifty."""

from __future__ import annotations

import random
from pathlib import Path

import search_chaos


def test_the_successor_of_a_killed_driver_has_the_trials_of_an_undisturbed_search(tmp_path: Path) -> None:
    dice = random.Random(1)  # noqa: S311 -- no secret
    assert search_chaos.kill_drivers(tmp_path, 8, kills=2, drivers=1, dice=dice) == []
