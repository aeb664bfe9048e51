"""The TrainJobs pages in a browser with answers of the API that a test gives, without an Airflow behind them."""

from __future__ import annotations

import pathlib
import urllib.parse

from browser import TIMEOUT

from airflow_provider.ui import app

STATIC = pathlib.Path(app.__file__).with_name("static")
_PAGES = {"": "jobs.html", "job": "job.html", "compare": "compare.html", "search": "search.html"}
_EMPTY_LOG = {"lines": [], "times": [], "points": [], "resources": [], "left_out": 0, "cursor": "{}", "complete": True}
#: Answers of the API by the last part of the path.
_UNLESS_GIVEN = {"attempts": {"attempts": []}, "log": _EMPTY_LOG}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def leave(page):
    """Empty a page for the next test: a new page in a new context costs Chromium half a second of processor more."""
    page.mouse.move(0, 0)
    if page.url.startswith("http"):
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
    # Ends the scripts of the page, which poll: only then are their requests no longer answered.
    page.goto("about:blank")
    page.unroute_all(behavior="ignoreErrors")


class RoutedPages:
    """Opens pages of a browser whose requests are answered here, with the headers of the API server."""

    def __init__(self, browser):
        self._browser = browser
        self._pages = []
        self._opened = 0
        #: Errors of scripts, dialogs, and what the Content-Security-Policy refused.
        self.problems = []

    def __call__(self, answers, width=1440, path="", height=900, scheme="light"):
        """Open a page.

        An answer by path is JSON, a function that is called with the query and returns JSON, or a list, to which the
        request is appended, so that the test can answer it later.
        """
        if self._opened == len(self._pages):
            self._pages.append(self._create_page())
        page = self._pages[self._opened]
        self._opened += 1
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.route("**/*", lambda route: self._answer(route, answers))
        page.goto(f"http://airflow/trainjobs/{path}")
        return page

    def leave_all(self):
        """Empty the pages that were opened since the last call; return their problems."""
        for page in self._pages[: self._opened]:
            leave(page)
        self._opened = 0
        problems, self.problems = self.problems, []
        return problems

    def _create_page(self):
        context = self._browser.new_context(locale="en-US", timezone_id="UTC")
        context.set_default_timeout(TIMEOUT)
        page = context.new_page()
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        return page

    @staticmethod
    def _answer(route, answers):
        address = urllib.parse.urlsplit(route.request.url)
        path = address.path.removeprefix("/trainjobs/")
        answer = answers.get(path, _UNLESS_GIVEN.get(path.rpartition("/")[2]))
        if isinstance(answer, list):
            answer.append(route)
            return
        if answer is not None:
            route.fulfill(json=answer(urllib.parse.parse_qs(address.query)) if callable(answer) else answer)
            return
        file = app.find_asset(path.removeprefix("assets/")) or STATIC / _PAGES[path]
        route.fulfill(body=file.read_bytes(), content_type=_TYPES[file.suffix], headers=app.HEADERS)
