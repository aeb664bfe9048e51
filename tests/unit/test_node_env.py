"""The environment variables of the processes of a job."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trainer_core.node import env

LAUNCHERS = ["RANK", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID", "DMLC_TASK_ID", "PET_NODE_RANK", "JOB_COMPLETION_INDEX"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_rank_is_that_of_the_launcher_or_the_controller(monkeypatch, name):
    monkeypatch.setenv(name, "3")
    assert env.rank() == 3


@pytest.mark.parametrize(("nearer", "farther"), list(pairwise(LAUNCHERS)))
def test_the_number_of_a_process_comes_before_that_of_a_node(monkeypatch, nearer, farther):
    monkeypatch.setenv(nearer, "0")
    monkeypatch.setenv(farther, "3")
    assert env.rank() == 0


@pytest.mark.parametrize("text", ["", "-1", "one", "²"])
def test_a_value_that_is_no_number_is_ignored(monkeypatch, text):
    monkeypatch.setenv("RANK", text)
    monkeypatch.setenv("PET_NODE_RANK", "2")
    assert env.rank() == 2


def test_a_process_without_a_number_is_the_first():
    assert env.rank() == 0
