"""A few interruptions of a tree of processes; `make attack` draws others."""

from __future__ import annotations

import container_engine
import pytest
from interruptions import Draw, interrupt
from optional_packages import requires

pytestmark = pytest.mark.deep

DRAWS = [
    Draw("local", "kill", "collective", "rank-1", helper_session=True),
    Draw("local", "kill", "between", "supervisor", shape="child"),
    Draw("local", "terminate-all", "between", shape="child"),
    Draw("local", "suspend", "save", shape="child"),
]


@requires("torch")
@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_an_interrupted_tree_leaves_no_process_and_a_training_that_continues_exactly(draw, tmp_path):
    assert interrupt(draw, tmp_path) == []


def test_an_interrupted_tree_in_a_container_leaves_no_process_and_a_training_that_continues_exactly(tmp_path):
    container_engine.engine()
    assert interrupt(Draw("container", "kill", "between", "supervisor", shape="child"), tmp_path) == []
