"""Runs one function on many items in threads and stops after the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")


def run_parallel(function: Callable[[_Item], object], items: Iterable[_Item], workers: int) -> None:
    iterator, lock = iter(items), threading.Lock()
    #: In the order of time: others may be consequences of the first.
    errors: list[BaseException] = []

    def next_items() -> Iterator[_Item]:
        while not errors:
            with lock:
                item = next(iterator, iterator)
            if item is iterator:
                return
            yield item  # type: ignore[misc]  # never the iterator, which marks the end

    def worker() -> None:
        try:
            for item in next_items():
                function(item)
        except BaseException as error:  # noqa: BLE001 -- raised below
            errors.append(error)

    with ThreadPoolExecutor(workers, thread_name_prefix="fetch") as pool:
        for _ in range(workers):
            pool.submit(worker)
    if errors:
        raise errors[0]
