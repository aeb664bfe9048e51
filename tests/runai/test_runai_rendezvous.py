"""Rendezvous variables of torchrun, for controllers that set only those of the training processes."""

from __future__ import annotations

import pytest

from trainer_core.node import launch

TRAINING_VARIABLES = {"TRAINJOB_NODES": "3", "RANK": "2", "MASTER_ADDR": "digits-master-0", "MASTER_PORT": "23456"}


def test_torchrun_gets_the_rank_and_master_of_the_training_variables():
    assert launch.rendezvous_variables(TRAINING_VARIABLES) == {
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "digits-master-0",
        "PET_MASTER_PORT": "23456",
    }


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**TRAINING_VARIABLES, "PET_NNODES": "3"},
        {**TRAINING_VARIABLES, "TRAINJOB_NODES": "1"},
        {"TRAINJOB_NODES": "3"},
    ],
    ids=["no variables", "torchrun variables set", "one node", "no master address"],
)
def test_no_variables_are_added_if_they_are_set_or_unknown(environ):
    assert launch.rendezvous_variables(environ) == {}
