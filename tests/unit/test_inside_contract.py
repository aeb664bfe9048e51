"""What a process of a job is told by its environment."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trainer_core.node import env

LAUNCHERS = ["RANK", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID", "DMLC_TASK_ID", "PET_NODE_RANK", "JOB_COMPLETION_INDEX"]


@pytest.fixture(autouse=True)
def nobody_numbers_this_process(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_rank_is_what_a_launcher_or_a_controller_says(monkeypatch, name):
    monkeypatch.setenv(name, "3")
    assert env.rank() == 3


@pytest.mark.parametrize(("nearer", "farther"), list(pairwise(LAUNCHERS)))
def test_who_numbers_processes_counts_before_who_numbers_nodes(monkeypatch, nearer, farther):
    monkeypatch.setenv(nearer, "0")
    monkeypatch.setenv(farther, "3")
    assert env.rank() == 0


@pytest.mark.parametrize("text", ["", "-1", "one", "²"])
def test_what_is_no_number_is_passed_over(monkeypatch, text):
    monkeypatch.setenv("RANK", text)
    monkeypatch.setenv("PET_NODE_RANK", "2")
    assert env.rank() == 2


def test_a_process_that_nobody_numbers_is_the_first():
    assert env.rank() == 0
