"""The stand-in where this process, and every one that it starts, looks for the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fake_hub.server import Hub

__all__ = ["TOKEN", "in_place_of_the_hub"]

#: What a reader shows who may read everything that names it.
TOKEN = "hf_reader"


@contextmanager
def in_place_of_the_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hub]:
    """Serve an empty Hub that knows the `TOKEN`; what is fetched from it is cached in a folder."""
    monkeypatch.setenv("HF_HOME", str(folder / "huggingface"))
    # Whoever is held, or waits for its turn on a busy machine, is not to ask again meanwhile.
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60")
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "60")
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.tokens.add(TOKEN)
        yield hub
