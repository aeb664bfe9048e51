"""The agreement of ranks: the same decision at the same call, whatever the ranks know and however fast they are."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainer_core.node.checkpoint_folder import CheckpointFolder
from trainer_core.node.checkpoint_ranks import Agreement, Ranks


@pytest.fixture
def build_agreement(tmp_path):
    """Build the agreement of one rank; the ranks ask each other after `interval` seconds."""

    def build(rank, size, interval=1e-9, saves=(), stops=()):
        """Decide to save, and hear of a stop, at some calls of `Agreement.ask`."""
        place = CheckpointFolder(str(tmp_path))
        place.interval = interval
        ranks = Ranks(place, rank, size)
        ranks.nonce = "0"
        calls = iter(range(1, 1_000_000))
        agreement = Agreement(ranks, lambda: next(calls) in saves, lambda: agreement._call in stops)
        return agreement

    return build


def ask(agreement, calls, every=0):
    """Ask as a training does, which ends at a stop; return what was decided at each call."""
    decided = []
    for call in range(1, calls + 1):
        decided.append(agreement.ask(bool(every) and call % every == 0))
        if agreement.stop:
            break
    return decided


@pytest.mark.parametrize("every", [0, 7])
@pytest.mark.parametrize("seed", range(3))
def test_all_ranks_decide_alike_at_each_call_and_stop_at_the_same(build_agreement, seed, every):
    def train(rank):
        chance = random.Random(f"{seed}{rank}")  # noqa: S311
        # One rank hears of the stop, at any call.
        agreement = build_agreement(rank, 3, 0.002, saves=range(3, 400, 11), stops=range(150, 900) if rank == 2 else ())
        decided = []
        for call in range(1, 1000):
            time.sleep(chance.choice([0, 0, 0, 0.001]))
            decided.append(agreement.ask(bool(every) and call % every == 0))
            if agreement.stop:
                break
        return decided

    with ThreadPoolExecutor(3) as threads:
        first, *others = threads.map(train, range(3))

    assert others == [first, first]
    assert True in first
    assert 150 <= len(first) < 999


def test_a_rank_far_behind_takes_part_in_the_save_that_rank_0_decided(build_agreement):
    ahead = ask(build_agreement(0, 2, saves=(10,)), calls=500)
    behind = ask(build_agreement(1, 2), calls=500)

    assert ahead == behind
    assert [call for call, save in enumerate(behind, 1) if save] == [10]


def test_a_process_alone_saves_when_it_is_time_and_stops_at_its_next_call(build_agreement):
    alone = build_agreement(0, 1, saves=(4,), stops=range(6, 9))
    assert ask(alone, calls=20) == [False, False, False, True, False, False]
    assert alone.stop
