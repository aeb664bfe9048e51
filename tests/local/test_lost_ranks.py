"""A rank of real torchrun that is lost while others talk to it: it is the cause, and not what its loss provokes."""

from __future__ import annotations

import pytest
from local_jobs import PATIENCE
from optional_packages import requires

from trainer_core import Category, RestartPolicy

pytestmark = [requires("torch"), pytest.mark.slow]


def loses_a_rank(talk: str, victim: int, deed: str):
    """One rank ends by a deed while the others talk to it: in the fifth round, at the rendezvous, or at the end."""
    import os
    import signal
    import sys

    import torch
    import torch.distributed as dist

    def fail():
        dist.destroy_process_group()  # Its peers notice before it has reported its error.
        raise ValueError("a mistake")

    def end():
        sys.stdout.flush()
        deeds = {"exit": lambda: os._exit(17), "sys.exit": lambda: sys.exit(-1), "error": fail}
        deeds.get(deed, lambda: os.kill(os.getpid(), getattr(signal, deed)))()

    is_victim = int(os.environ["RANK"]) == victim
    if is_victim and talk == "rendezvous":
        end()
    dist.init_process_group("gloo")
    talks = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(100)),
        "all_gather_object": lambda: dist.all_gather_object([None] * dist.get_world_size(), {"x": [1] * 100}),
    }
    for number in range(50):
        if is_victim and number == 5 and talk != "end":
            end()
        try:
            talks.get(talk, dist.barrier)()
        except RuntimeError as error:
            raise LookupError("a round failed") from error
    if is_victim:
        end()
    dist.destroy_process_group()


def diagnose(client, ask, name="job", nodes=1, processes=2, options=(), **arguments):
    arguments = {"victim": 1, "talk": "all_reduce", **arguments}
    request = ask(
        loses_a_rank,
        arguments,
        runtime="torch-distributed",
        num_nodes=nodes,
        num_proc_per_node=processes,
        options=options,
        name=name,
    )
    return client.wait(client.submit(request), timeout=PATIENCE)


def deep(*values):
    return pytest.param(*values, marks=pytest.mark.deep)


# Rank 0 serves the rendezvous of the others.
LOSSES = [("all_reduce", 0), ("rendezvous", 1), ("end", 0)]
MORE_LOSSES = [deep("all_reduce", 1), deep("barrier", 1), deep("all_gather_object", 0)]


@pytest.mark.parametrize(("talk", "victim"), [*LOSSES, *MORE_LOSSES])
def test_a_killed_rank_is_the_cause_and_a_retry_may_help(client, ask, talk, victim):
    diagnosis = diagnose(client, ask, talk=talk, victim=victim, deed="SIGKILL").diagnosis
    assert (diagnosis.category, diagnosis.retryable, diagnosis.exit_code) == (Category.INFRASTRUCTURE, True, -9)
    assert diagnosis.reason.startswith(f"rank {victim} was killed by SIGKILL")


@pytest.mark.parametrize(("talk", "victim"), [("all_reduce", 0), deep("barrier", 1), deep("rendezvous", 1)])
def test_a_killed_rank_of_another_node_is_the_cause(client, ask, talk, victim):
    diagnosis = diagnose(client, ask, nodes=2, processes=1, talk=talk, victim=victim, deed="SIGKILL").diagnosis
    assert (diagnosis.category, diagnosis.step) == (Category.INFRASTRUCTURE, f"node-{victim}")
    assert diagnosis.reason.startswith(f"rank {victim} was killed by SIGKILL")


@pytest.mark.parametrize(
    ("deed", "code"), [("SIGSEGV", -11), deep("SIGABRT", -6), ("exit", 17), deep("sys.exit", 255), deep("error", 1)]
)
def test_the_exit_code_of_the_rank_that_failed_first_counts(client, ask, deed, code):
    diagnosis = diagnose(client, ask, talk="barrier", deed=deed).diagnosis
    assert (diagnosis.category, diagnosis.retryable, diagnosis.exit_code) == (Category.USER_CODE, False, code)


def test_a_rule_for_the_exit_code_of_a_rank_restarts_a_torchrun_training(client, ask):
    policy = RestartPolicy(max_restarts=1, exit_codes={139: "count"}, delay=0)
    outcome = diagnose(client, ask, deed="SIGSEGV", options=[policy])
    assert (outcome.restarts.counted, outcome.diagnosis.exit_code) == (1, -11)
