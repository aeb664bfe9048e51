"""The stand-in where this process, and every one that it starts, looks for the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fake_hub.server import Hub

#: Token of a reader, for repositories that list it in `readers`.
TOKEN = "hf_reader"


@contextmanager
def in_place_of_the_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hub]:
    """Serve an empty Hub that knows the `TOKEN`; what is fetched from it is cached in a folder."""
    monkeypatch.setenv("HF_HOME", str(folder / "huggingface"))
    # A request that a fault holds, or that waits on a busy machine, must not be repeated.
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60")
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "60")
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.tokens.add(TOKEN)
        yield hub
