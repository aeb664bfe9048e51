"""A real browser for tests of pages."""

from __future__ import annotations

import contextlib

import chromium
import pytest

#: Milliseconds; much longer than needed, so that no test fails on a busy machine.
TIMEOUT = 300_000


@contextlib.contextmanager
def run_browser():
    """Chromium; skips the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`")
    if chromium.find() is None:
        pytest.skip("needs Chromium on PATH: `apt-get install chromium`")
    sync_api.expect.set_options(timeout=TIMEOUT)
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium.__file__, args=["--no-sandbox", "--disable-gpu"], timeout=TIMEOUT
        )
        yield running
        running.close()
