"""`trainjob logs` for several steps."""

from __future__ import annotations

import json

import pytest

TWO_NODES = """
name: job
runtime: python
trainer:
  func: train:wait_for
  func_args: {path: GATE}
  num_nodes: 2
"""


@pytest.fixture
def gate(trainjob):
    gate = trainjob.folder / "gate"
    (trainjob.folder / "job.yaml").write_text(TWO_NODES.replace("GATE", str(gate)))
    trainjob("submit", "--file", "job.yaml")
    return gate


def test_the_logs_of_all_steps_are_printed_one_after_the_other(trainjob, gate):
    gate.touch()
    trainjob("wait", "job")

    assert trainjob("logs", "job", "--all").stdout == "[node-0] waiting\n[node-1] waiting\n"


def test_the_logs_of_all_steps_are_followed_at_the_same_time(trainjob, gate):
    following = trainjob.start("logs", "job", "--all", "--follow", "-o", "json")
    lines = [json.loads("".join(following.stdout.readline() for _ in range(4))) for _ in range(2)]
    gate.touch()

    assert sorted(line["step"] for line in lines) == ["node-0", "node-1"]
    assert {line["line"] for line in lines} == {"waiting"}
    assert following.wait() == 0
    following.communicate()
