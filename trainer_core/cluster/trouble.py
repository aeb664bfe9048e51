"""PodFacts and EventFacts → why a job cannot start, or why it failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainer_core.cluster.events import EventFacts
from trainer_core.cluster.pods import PodFacts
from trainer_core.diagnosis import Facts
from trainer_core.observation import Trouble

__all__ = ["facts", "trouble"]


def trouble(
    pods: Sequence[PodFacts], events: Sequence[EventFacts] = (), tails: Mapping[str, Sequence[str]] | None = None
) -> Trouble | None:
    """Say what is wrong with a job that has not ended; None where nothing is."""
    return None


def facts(
    pods: Sequence[PodFacts], events: Sequence[EventFacts] = (), tails: Mapping[str, Sequence[str]] | None = None
) -> Facts:
    """Say what is known of a job that failed."""
    return Facts()
