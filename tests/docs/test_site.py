"""The documentation site in a browser: what its search finds first, and what its copy buttons copy."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from blocks import ROOT
from browser import TIMEOUT, run_browser

pytestmark = pytest.mark.slow


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site that `make docs` builds without a warning: its folder. CI has built it, and names it."""
    if found := os.environ.get("TRAINJOB_SITE"):
        return Path(found)
    folder = tmp_path_factory.mktemp("site")
    program = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def site(built):
    """A tab with the site."""
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=built)) as server,
        run_browser() as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        context = browser.new_context(base_url=address)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
        context.set_default_timeout(TIMEOUT)
        yield context.new_page()
        server.shutdown()


def find_first(site, word):
    """Return the address of the first result of a search."""
    site.get_by_placeholder("Search").fill(word)
    site.get_by_placeholder("Search").press("End")  # The search reads its text when a key is released.
    first = site.locator(".md-search-result__item").first
    # The results of the word before have no such mark.
    first.locator("mark", has_text=re.compile(word, re.IGNORECASE)).first.wait_for()
    return first.locator("a").first.get_attribute("href")


def test_the_site_builds_without_a_warning(built):
    assert "num_proc_per_node" in (built / "reference/core/trainers/index.html").read_text(encoding="utf-8")
    assert "trainjob submit" in (built / "reference/command/index.html").read_text(encoding="utf-8")


def test_the_search_lists_a_guide_first(site):
    site.goto("/")
    # One page for all words: each page builds the index of the whole site again.
    words = ["checkpoint", "secret", "install", "retry", "airflow"]
    found = {word: find_first(site, word) for word in words}
    assert [word for word in words if "/guides/" not in found[word]] == [], found


def test_a_copy_button_copies_commands_without_prompts_and_output(site):
    site.goto("/guides/cli/")
    block = site.locator(".highlight", has_text="trainjob list").first
    block.hover()
    block.locator("button").first.click()
    site.locator(".md-dialog--active").wait_for()
    lines = site.evaluate("navigator.clipboard.readText()").strip().splitlines()
    assert lines[0] == "trainjob list"
    assert all(line.startswith("trainjob ") for line in lines)
