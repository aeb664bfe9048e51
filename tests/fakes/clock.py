"""A clock that stands still until a test, or the sleep of the code under test, moves it."""

from __future__ import annotations


class Clock:
    """Takes the place of the module `time`, or of a function that returns the time."""

    def __init__(self, now: float = 1000) -> None:
        #: What it shows, in seconds.
        self.now = now

    def __call__(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
