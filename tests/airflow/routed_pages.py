"""The TrainJobs pages in a browser with answers of the API that a test gives, without an Airflow behind them."""

from __future__ import annotations

import pathlib
import urllib.parse

from browser import TIMEOUT

from airflow_provider.ui import app

STATIC = pathlib.Path(app.__file__).with_name("static")
_PAGES = {"": "jobs.html", "job": "job.html", "compare": "compare.html"}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class RoutedPages:
    """Opens pages of a browser whose requests are answered here, with the headers of the API server.

    Attributes:
        problems: Errors of scripts, dialogs, and what the Content-Security-Policy refused.
    """

    def __init__(self, browser):
        self._browser = browser
        self._contexts = []
        self.problems = []

    def __call__(self, answers, width=1440, path="", height=900, scheme="light"):
        """Open a page. An answer by path is JSON, or a function that is called with the query and returns JSON."""
        screen = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
        context = self._browser.new_context(**screen, locale="en-US", timezone_id="UTC")
        context.set_default_timeout(TIMEOUT)
        self._contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.route("**/*", lambda route: self._answer(route, answers))
        page.goto(f"http://airflow/trainjobs/{path}")
        return page

    def close(self):
        for context in self._contexts:
            context.close()

    @staticmethod
    def _answer(route, answers):
        address = urllib.parse.urlsplit(route.request.url)
        path = address.path.removeprefix("/trainjobs/")
        if path in answers:
            answer = answers[path]
            route.fulfill(json=answer(urllib.parse.parse_qs(address.query)) if callable(answer) else answer)
            return
        file = app.find_asset(path.removeprefix("assets/")) or STATIC / _PAGES[path]
        route.fulfill(body=file.read_bytes(), content_type=_TYPES[file.suffix], headers=app.HEADERS)
