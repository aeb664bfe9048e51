"""Nodes find each other also where only the training is told of the others, and not torchrun."""

from __future__ import annotations

import pytest

from trainer_core.inside import launch

TOLD = {"TRAINJOB_NODES": "3", "RANK": "2", "MASTER_ADDR": "digits-master-0", "MASTER_PORT": "23456"}


def test_torchrun_is_told_what_the_training_is_told():
    assert launch.meeting(TOLD) == {
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "digits-master-0",
        "PET_MASTER_PORT": "23456",
    }


@pytest.mark.parametrize(
    "environ",
    [{}, {**TOLD, "PET_NNODES": "3"}, {**TOLD, "TRAINJOB_NODES": "1"}, {"TRAINJOB_NODES": "3"}],
    ids=["nothing is told", "torchrun is told", "one node", "nobody says where to meet"],
)
def test_torchrun_is_told_nothing_that_it_knows_or_that_nobody_knows(environ):
    assert launch.meeting(environ) == {}
