"""Which error is raised where one function runs on many items."""

from __future__ import annotations

import threading

import pytest

from trainer_core.fetch.parallel import run_parallel


def test_the_first_error_in_time_is_raised_and_not_its_consequences():
    threads = {}
    both_run = threading.Barrier(2)

    def download(item):
        threads[item] = threading.current_thread()
        both_run.wait(300)
        if item == "second":
            raise ValueError("the cause")
        # A thread of the pool that has nothing else to do ends.
        threads["second"].join(300)
        raise RuntimeError("stopped")

    with pytest.raises(ValueError, match="the cause"):
        run_parallel(download, ["first", "second"], 2)


def test_no_call_starts_after_the_first_error():
    called = []

    def fail(item):
        called.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        run_parallel(fail, range(100), 1)
    assert called == [0]
