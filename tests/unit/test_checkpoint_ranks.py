"""The agreement of ranks: the same decision at the same call, whatever the ranks know and however fast they are."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from clock import Clock

from trainer_core.node import checkpoint_ranks
from trainer_core.node.checkpoint_folder import CheckpointError, CheckpointFolder
from trainer_core.node.checkpoint_ranks import Agreement, Ranks, Stopped


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


def test_ranks_ask_each_other_after_an_interval_which_is_reached_by_doubling_the_calls(build_agreement, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(checkpoint_ranks, "time", clock)
    agreement = build_agreement(0, 2, interval=10, saves=range(1000))
    decided = []
    for call in range(1, 40):
        clock.sleep(1)
        decided += [call] if agreement.ask(saves=False) else []

    assert decided == [1, 2, 4, 8, 16, 26, 36]


def test_a_rank_far_behind_takes_part_in_the_save_that_rank_0_decided(build_agreement):
    ahead = ask(build_agreement(0, 2, saves=(10,)), calls=500)
    behind = ask(build_agreement(1, 2), calls=500)

    assert ahead == behind
    assert [call for call, save in enumerate(behind, 1) if save] == [10]


def test_a_process_alone_saves_when_it_is_time_and_stops_at_its_next_call(build_agreement):
    alone = build_agreement(0, 1, saves=(4,), stops=range(6, 9))
    assert ask(alone, calls=20) == [False, False, False, True, False, False]
    assert alone.stop


@pytest.fixture
def ranks(tmp_path):
    """Three ranks of one start."""
    place = CheckpointFolder(str(tmp_path))
    place.timeout = 0.05
    three = [Ranks(place, rank, 3) for rank in range(3)]
    for each in three:
        each.nonce = "0"
    place.write("start.json", {"nonce": "0"})
    return three


@pytest.mark.parametrize("task", ["7", ""], ids=["in this save", "outside a save"])
def test_a_rank_that_takes_part_in_a_save_ends_with_the_one_that_failed(ranks, task):
    first, second, third = ranks
    assert not second.mark_failed(task)

    for waiting in (first, third):
        with pytest.raises(CheckpointError, match=r"the checkpoint was not saved: rank 1 failed; see its log"):
            waiting.check("7")
    second.check("7")  # It knows that it failed.


def test_two_ranks_that_fail_together_each_name_the_other_and_the_last_one_knows_that_it_is(ranks):
    first, second, third = ranks
    are_all = [each.mark_failed("7") for each in (second, third, first)]

    assert are_all == [False, False, True]
    with pytest.raises(CheckpointError, match=r"rank [02] failed"):
        second.check("7")
    with pytest.raises(CheckpointError, match=r"rank [12] failed"):
        first.check("7")


def test_a_failure_in_another_save_or_of_an_earlier_start_concerns_no_rank(ranks):
    first, second, third = ranks
    second.mark_failed("7")
    third.nonce = "earlier"
    third.mark_failed("8")
    first.check("8")
    first.check()


def test_a_rank_that_waits_for_one_that_failed_ends_before_its_time_is_over(ranks):
    first, second, _ = ranks
    first.place.timeout, first.place.poll = 600, 0
    second.mark_failed("7")
    with pytest.raises(CheckpointError, match="rank 1 failed"):
        first.wait(lambda: None, "rank 1 to save", "7")


def test_a_rank_that_waits_in_vain_names_what_it_waited_for(ranks):
    with pytest.raises(CheckpointError, match=r"rank 2 waited 0 s for rank 0 to complete step 3"):
        ranks[2].wait(lambda: None, "rank 0 to complete step 3")


def test_a_rank_ends_to_start_with_a_newer_rank_0_and_rank_0_does_not(ranks):
    first, second, _ = ranks
    first.place.write("start.json", {"nonce": "1"})

    with pytest.raises(Stopped, match="rank 0 was started again"):
        second.check()
    first.check()
    assert [each.is_current() for each in ranks] == [False, False, False]


def test_the_last_rank_that_needs_nothing_more_knows_that_it_is(ranks):
    assert [each.mark_over() for each in ranks] == [False, False, True]
    assert Ranks(ranks[0].place, 0, 1).mark_over()


def test_the_ranks_hear_of_a_stop_that_one_was_told_until_the_next_start(ranks):
    first, second, third = ranks
    assert not third.is_one_told_to_stop()
    second.mark_stop()
    assert [first.is_one_told_to_stop(), third.is_one_told_to_stop()] == [True, True]
    first.nonce = "1"
    assert not first.is_one_told_to_stop()


def test_a_rank_waits_for_one_in_its_place_that_saves_within_its_grace_and_no_longer(ranks, monkeypatch):
    place, clock = ranks[0].place, [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    overlapping = Ranks(place, 0, 3, grace=30, overlaps=True)
    overlapping.nonce = "0"
    overlapping.mark_stop()

    def is_ending(since=1000.0):
        return [each._is_ending("0", 0, since) for each in (overlapping, ranks[0])]

    assert is_ending() == [True, False]
    clock[0] = 1029.9
    assert is_ending() == [True, False]
    assert is_ending(since=990.0) == [False, False]
    clock[0] = 1030.0
    assert is_ending() == [False, False]
    clock[0] = 1000.0
    overlapping.mark_stop(is_over=True)
    assert is_ending() == [False, False]
