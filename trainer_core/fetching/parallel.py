"""The same work on many things at once; the first failure ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["each"]

_Thing = TypeVar("_Thing")


def each(work: Callable[[_Thing], object], things: Iterable[_Thing], workers: int) -> None:
    """Do the work on each thing, on so many at once.

    Raises:
        Exception: Of the first work that failed. What the others had begun is finished, nothing else is begun.
    """
    todo, lock, failed = iter(things), threading.Lock(), threading.Event()

    def taken() -> Iterator[_Thing]:
        while not failed.is_set():
            with lock:
                thing = next(todo, todo)
            if thing is todo:
                return
            yield thing  # type: ignore[misc]  # not the iterator, which stands for the end

    def worker() -> None:
        try:
            for thing in taken():
                work(thing)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(workers, thread_name_prefix="fetch") as pool:
        running = [pool.submit(worker) for _ in range(workers)]
    problems = [problem for each in running if (problem := each.exception())]
    if problems:
        raise problems[0]
