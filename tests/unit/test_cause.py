"""Which of the failures of a job is the cause of the others, for drawn ends of processes."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given, settings, strategies as st

from trainer_core.lifecycle.diagnosis import Facts, StepFacts, diagnose, is_consequence
from trainer_core.model.jobs import Category
from trainer_core.node.termination import is_lost_peer

LOST = [
    ("RuntimeError", "[pair.cc:537] Read error [127.0.0.1]:81: Connection reset by peer. This is typically caused …"),
    ("RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]:35486."),
    ("RuntimeError", "Timed out waiting 1800000ms for recv operation to complete"),
    (
        "RuntimeError",
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 1800000 ms\n Original exception: \nBroken pipe",
    ),
    (
        "torch.distributed.DistBackendError",
        "NCCL error … ncclRemoteError: A call failed possibly due to a network error",
    ),
    ("torch.distributed.DistNetworkError", "failed to recv, got 0 bytes"),
    ("torch.distributed.DistStoreError", "wait timeout after 300000ms, keys: /default_pg/0//1"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError", "The connection has failed."),
    ("BrokenPipeError", "[Errno 32] Broken pipe"),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("RuntimeError", "DataLoader worker (pid(s) 4242) exited unexpectedly"),
    ("RuntimeError", "DataLoader worker (pid 4242) is killed by signal: Terminated. "),
    ("trainjob.CheckpointError", "the checkpoint was not saved: rank 0 failed; see its log"),
    ("subprocess.CalledProcessError", "Command '['python', 'train.py']' died with <Signals.SIGTERM: 15>."),
    ("subprocess.CalledProcessError", "Command '['python', 'train.py']' returned non-zero exit status 143."),
]
MISTAKES = [("ValueError", "bad shape"), ("KeyError", "'x'"), ("RuntimeError", "CUDA error: device-side assert")]
KILLED, CRASHED = (-signal.SIGKILL, -signal.SIGHUP), (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)


def build_step(name, error, exits, order=0, **known):
    """Build a node with the error of its rank 0, and the other ranks of it as torchrun has seen them end."""
    kind, message = error
    ranks = {str(10 * order + number): code for number, code in enumerate(exits)}
    record = {"error": {"type": kind, "message": message, "rank": 10 * order, "traceback": ""}, "exits": ranks}
    record["error"]["lost"] = [rank for rank in map(int, ranks) if ranks[str(rank)] == 1] if error in LOST else []
    return StepFacts.from_record(name, {**record, **known}, exit_code=1)


lost, mistakes = st.sampled_from(LOST), st.sampled_from(MISTAKES)
#: What ends beside the cause: ranks that raised for the same peer, and those that torchrun or a checkpoint ended.
followers = st.lists(st.sampled_from([1, -signal.SIGTERM, 128 + signal.SIGTERM]), max_size=3)
fast = settings(max_examples=60, deadline=None, derandomize=True)


@fast
@given(lost, followers, st.sampled_from([*KILLED, *CRASHED, 17, 255]), st.data())
def test_a_rank_that_torchrun_saw_end_is_the_cause_and_never_what_its_loss_provokes(error, others, code, data):
    exits = [1, *others]
    exits.insert(victim := data.draw(st.integers(1, len(exits))), code)
    nodes = [build_step("node-0", error, exits)]
    nodes += [build_step("node-1", data.draw(lost), [1, *data.draw(followers)], 1)] * data.draw(st.integers(0, 1))
    diagnosis = diagnose(Facts(steps=data.draw(st.permutations(nodes))))
    assert (diagnosis.step, diagnosis.exit_code, diagnosis.traceback) == ("node-0", code, None)
    assert diagnosis.reason.startswith(f"rank {victim} ")
    assert diagnosis.retryable == (code in KILLED)
    assert diagnosis.category is (Category.INFRASTRUCTURE if code in KILLED else Category.USER_CODE)


@fast
@given(lost, followers, st.integers(1, 9), st.booleans())
def test_a_killed_rank_has_run_out_of_memory_where_the_kernel_has_counted_a_kill(error, others, kills, counted):
    known = {"oom_kills": kills if counted else 0}
    diagnosis = diagnose(Facts(steps=[build_step("node-0", error, [1, *others, -9], **known)]))
    expected = Category.OUT_OF_MEMORY if counted else Category.INFRASTRUCTURE
    assert (diagnosis.category, diagnosis.exit_code) == (expected, -9)
    assert diagnosis.reason.startswith(f"rank {1 + len(others)} ")


@pytest.mark.parametrize(("kills", "category"), [(0, Category.INFRASTRUCTURE), (2, Category.OUT_OF_MEMORY)])
def test_a_function_that_was_killed_has_run_out_of_memory_where_the_kernel_has_counted_a_kill(kills, category):
    step = StepFacts.from_record("node-0", {"oom_kills": kills}, exit_code=-9)
    assert diagnose(Facts(steps=[step])).category is category


@fast
@given(mistakes, lost, followers, st.booleans())
def test_a_mistake_is_the_cause_of_the_errors_that_the_loss_of_its_rank_provokes(mistake, error, others, reverse):
    nodes = [build_step("node-0", error, [1, *others]), build_step("node-1", mistake, [1, *others], 1)]
    diagnosis = diagnose(Facts(steps=nodes[::-1] if reverse else nodes))
    assert (diagnosis.category, diagnosis.step, diagnosis.exit_code) == (Category.USER_CODE, "node-1", 1)


@fast
@given(lost, followers, st.booleans())
def test_a_lost_peer_that_is_not_known_is_no_mistake_and_a_retry_may_help(error, others, has_exits):
    step = build_step("node-0", error, [1, *others] if has_exits else [])
    assert is_consequence(step)
    diagnosis = diagnose(Facts(steps=[step]))
    assert (diagnosis.category, diagnosis.retryable) == (Category.INFRASTRUCTURE, True)
    assert diagnosis.reason.startswith(f"{error[0]}: {error[1].splitlines()[0]}")


@fast
@given(lost, st.sampled_from([{"node_lost": "gone"}, {"preempted": "evicted"}, {"out_of_memory": True}]), st.booleans())
def test_a_node_that_is_lost_evicted_or_out_of_memory_is_the_cause(error, known, reverse):
    nodes = [build_step("node-0", error, [1]), StepFacts("node-1", -9, **known)]
    diagnosis = diagnose(Facts(steps=nodes[::-1] if reverse else nodes))
    assert (diagnosis.step, diagnosis.category is Category.USER_CODE) == ("node-1", False)


@fast
@given(lost, followers)
def test_a_rank_that_exits_without_an_error_among_ranks_that_lost_it_is_the_cause(error, others):
    record = build_step("node-0", error, [1, *others]).record
    step = StepFacts.from_record("node-0", {**record, "exits": {**record["exits"], "9": 1}}, exit_code=1)
    assert diagnose(Facts(steps=[step])).reason == "rank 9 ended with exit code 1"


@fast
@given(mistakes, lost)
def test_an_error_that_is_raised_from_that_of_a_lost_peer_is_one_too(mistake, error):
    kind, message = error
    trace = f"{kind}: {message}\n\nThe above exception was the direct cause of the following exception:\n\nKeyError: 1"
    wrapped = {"type": mistake[0], "message": mistake[1], "traceback": trace}
    is_about_text = kind in ("RuntimeError", "BrokenPipeError", "ConnectionResetError", "subprocess.CalledProcessError")
    assert is_lost_peer({**wrapped, "traceback": ""}) is False
    assert is_lost_peer(wrapped) or not is_about_text


def test_an_abort_by_the_watchdog_of_nccl_is_about_a_lost_peer():
    tail = ["[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(…"]
    step = StepFacts("node-0", 1, log_tail=tail, record={"exits": {"1": -6}})
    diagnosis = diagnose(Facts(steps=[step]))
    assert (diagnosis.category, diagnosis.retryable, diagnosis.exit_code) == (Category.INFRASTRUCTURE, True, -6)


def test_the_end_of_a_file_is_a_mistake_and_the_end_of_a_pool_is_none():
    trace = 'File "/usr/lib/python3.11/multiprocessing/connection.py", line 399, in _recv\n    raise EOFError\nEOFError'
    assert is_lost_peer({"type": "EOFError", "message": "", "traceback": trace})
    assert not is_lost_peer({"type": "EOFError", "message": "Ran out of input", "traceback": "pickle.load(file)"})


@pytest.mark.parametrize(
    "message",
    ["Command 'make' timed out after 5 seconds", "the connection settings are wrong", "Connection refused", "no data"],
)
def test_other_errors_of_connections_and_commands_are_mistakes(message):
    assert not is_lost_peer({"type": "RuntimeError", "message": message, "traceback": ""})


def test_a_process_of_a_pool_that_aborts_has_not_run_out_of_memory():
    pool = {"error_type": "concurrent.futures.process.BrokenProcessPool", "error_message": "terminated abruptly"}
    aborted = StepFacts("node-0", 1, log_tail=["Fatal Python error: Aborted"], **pool)
    diagnosis = diagnose(Facts(steps=[aborted]))
    assert (diagnosis.category, diagnosis.retryable) == (Category.USER_CODE, False)
    assert diagnosis.reason.startswith("a process that it started crashed (Aborted): ")


def test_the_counter_of_the_kernel_decides_whether_a_pool_has_run_out_of_memory():
    pool = {"error_type": "concurrent.futures.process.BrokenProcessPool", "error_message": "terminated abruptly"}
    kills = [StepFacts("node-0", 1, record=record, **pool) for record in ({"oom_kills": 1}, {"oom_kills": 0}, {})]
    out_of_memory = Category.OUT_OF_MEMORY
    found = [diagnose(Facts(steps=[step])).category for step in kills]
    assert found == [out_of_memory, Category.INFRASTRUCTURE, out_of_memory]
