"""Kills at every operation of a save: the result is bit for bit that of an undisturbed run."""

from __future__ import annotations

import signal

import pytest
from checkpoint_chaos import Chaos

TARGET = 60


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return Chaos(folder, str(folder / "base" / "train" / "g-0")).run(TARGET)[1][-1]


@pytest.fixture
def chaos(tmp_path):
    chaos = Chaos(tmp_path, str(tmp_path / "base" / "train" / "g-0"))
    yield chaos
    chaos.end()


def read_number(line):
    return int(line.split()[1])


def list_unfinished(tmp_path):
    return [
        path for path in (tmp_path / "base" / "train" / "g-0").iterdir() if path.name.startswith((".part", ".gone"))
    ]


def test_a_kill_at_any_operation_of_a_save_loses_at_most_the_step_of_that_save(chaos, tmp_path, undisturbed):
    begun, event, code = 0, 0, -signal.SIGKILL
    while code:
        event += 1
        code, lines = chaos.run(TARGET, event, signal.SIGKILL)
        # The step before the save that was struck is never lost; the one of that save may be.
        assert begun <= read_number(lines[0]) <= begun + 1, lines
        begun = read_number(lines[1])
        assert lines[2:] == (["struck"] if code else [f"saved {begun + 1}", lines[-1]])
    assert event > 10

    assert chaos.run(TARGET)[1][-1] == undisturbed
    assert list_unfinished(tmp_path) == []


def test_sigterm_at_any_operation_of_a_save_loses_no_step(chaos, tmp_path, undisturbed):
    begun = 0
    for event in (1, 3, 5, 7, 9, 11):
        code, lines = chaos.run(TARGET, event, signal.SIGTERM)
        assert (code, read_number(lines[0])) == (143, begun), lines
        begun += 2

    assert chaos.run(TARGET)[1][-1] == undisturbed
    assert list_unfinished(tmp_path) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_of_one_of_two_ranks_in_a_save_loses_at_most_the_step_of_that_save(chaos, tmp_path, undisturbed, victim):
    for event in (1, 2, 4, 7, 11):
        ranks = [chaos.start(TARGET, event if rank == victim else 10_000, signal.SIGKILL, rank, 2) for rank in range(2)]
        ranks[victim].communicate(timeout=600)
        # The orchestrator ends the job of a killed rank.
        ranks[1 - victim].kill()
        ranks[1 - victim].communicate()
    ranks = [chaos.start(TARGET, rank=rank, world=2) for rank in range(2)]
    for rank in ranks:
        out = rank.communicate(timeout=600)[0].splitlines()
        # Each of the five starts has completed its first save at least.
        assert next(read_number(line) for line in out if line.startswith("from ")) >= 5, out
        assert undisturbed in out, out[-12:]
    assert list_unfinished(tmp_path) == []
