"""The charts of the TrainJobs pages: axes, values under the pointer, gaps and units."""

from __future__ import annotations

import pytest
from ui_jobs import COMPARE_PATH, CREATED, DAG, JOB_PATH, NAMES, Api

expect = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`").expect

#: Texts of the ticks of each axis by chart: those of the vertical axis end at it.
TICKS = """() => [...document.querySelectorAll("#curves figure")].map((figure) => ["end", "middle"].map(
  (anchor) => [...figure.querySelectorAll(`text[text-anchor=${anchor}]`)].map((each) => each.textContent)))"""
#: Hostile values of metrics at the steps 1, 2 and 3.
VALUES = {
    "constant": [0.3, 0.3, 0.3],
    "last digits": [0.12345678901, 0.12345678902, 0.12345678903],
    "large and close": [1e9 + 1, 1e9 + 2, 1e9 + 3],
    "large": [1.0, 1e15, 3e20],
    "mixed": [-3.7, 0.0, 12.1],
    "near one": [1.0001, 1.0002, 1.0003],
    "negative": [-5e-7, -4e-7, -1e-9],
    "small": [2e-12, 3e-12, 7e-12],
    "small to large": [1e-300, 1.0, 1e300],
    "two decades": [0.8, 9.0, 95.0],
    "zero": [0, 0, 0],
}


class Points(Api):
    """The given reports of both jobs, by the number of the job."""

    def __init__(self, *points, resources=()):
        super().__init__()
        self._points, self._resources = points, list(resources)

    def log(self, query):
        part = {"lines": ["x"], "times": [None], "cursor": "{}", "complete": True, "left_out": 0}
        number = int(query["run_id"][0].removeprefix("run_"))
        return {**part, "points": self._points[number], "resources": self._resources}


def report(**metrics):
    """Reports of the values of each metric at the steps 1, 2, 3 and so on."""
    rows = [dict(zip(metrics, values, strict=True)) for values in zip(*metrics.values(), strict=True)]
    return [{"step": step, "metrics": row} for step, row in enumerate(rows, 1)]


@pytest.mark.parametrize("scale", ["", "&log=1"])
def test_no_tick_is_repeated(open_page, scale):
    page = open_page(Points(report(**VALUES)).answers, path=JOB_PATH + scale)
    expect(page.locator("#curves figure")).to_have_count(len(VALUES))
    for name, axes in zip(VALUES, page.evaluate(TICKS), strict=True):
        for ticks in axes:
            assert len(set(ticks)) == len(ticks) > 1, (name, ticks)
        assert axes[1] == ["1", "2", "3"], name
    assert page.evaluate("document.documentElement.scrollWidth") == 1440


def test_the_pointer_shows_the_nearest_point_of_each_curve(open_page):
    second = [{"step": step, "metrics": {"loss": step / 10}} for step in (2, 7, 12)]
    page = open_page(Points(report(loss=[0.5] * 11), second).answers, path=COMPARE_PATH)
    chart, values = page.get_by_role("img"), page.locator(".values")
    box = chart.bounding_box()

    def point(part):
        page.mouse.move(box["x"] + part * box["width"], box["y"] + 50)
        return values.locator("> div")

    expect(point(0.05)).to_have_text(["step 1", "train lr=0.10.5"])
    expect(point(0.56)).to_have_text(["step 7", "train lr=0.10.5", "train lr=0.010.7"])
    expect(point(0.47)).to_contain_text(["step 6", "lr=0.10.5", "lr=0.010.7at 7"])
    expect(chart.locator("circle")).to_have_count(2)
    page.mouse.move(0, 0)
    expect(values).to_be_empty()
    expect(page.get_by_role("list", name="Curves").get_by_role("listitem")).to_have_count(2)


def test_a_value_without_a_logarithm_is_a_gap(open_page):
    points = report(loss=[4, 3, 0, 2, -1, 1], none=[None] * 6)
    page = open_page(Points(points).answers, path=f"{JOB_PATH}&log=1")
    path = page.locator("#curves figure .curve").first
    assert path.get_attribute("d").count("M") == 3
    expect(page.get_by_role("img", name="loss from 4 at step 1 to 1 at step 6, between 1 and 4")).to_be_visible()
    expect(page.locator("figcaption")).to_have_text(["loss1 at step 6", "none- at step 6"])


def test_one_curve_fills_its_card(open_page):
    page = open_page(Points(report(loss=[2, 1])).answers, path=JOB_PATH)
    drawn = page.locator("#curves svg")
    expect(drawn).to_be_visible()
    card = page.locator("#curves .curves").bounding_box()["width"]
    assert drawn.bounding_box()["width"] == pytest.approx(card, abs=1)
    page.set_viewport_size({"width": 500, "height": 900})
    expect(drawn).not_to_have_attribute("width", str(int(card)))
    assert drawn.bounding_box()["width"] == pytest.approx(
        page.locator("#curves .curves").bounding_box()["width"], abs=1
    )


@pytest.mark.parametrize(
    ("seconds", "unit", "symbol"),
    [(59, "second 59", " s"), (60, "minute 1", " min"), (7199, "minute 120", " min"), (10_800, "hour 3", " h")],
)
def test_time_has_the_unit_that_fits(open_page, seconds, unit, symbol):
    use = [
        {"t": 1000 * at, "cpu": 50, "memory": at * 2**20, "memory_limit": 3 * 2**30, "gpus": []} for at in (0, seconds)
    ]
    page = open_page(Points([], resources=use).answers, path=JOB_PATH)
    section = page.get_by_role("region", name="Use of resources")
    chart = section.locator("figure").first
    chart.get_by_role("img").focus()
    page.keyboard.press("End")
    expect(chart.locator(".values > div").first).to_have_text(unit)
    ticks = chart.locator("text[text-anchor=middle]").all_text_contents()
    assert len(ticks) > 1
    assert all(text.endswith(symbol) for text in ticks)


def test_memory_is_shown_in_binary_units(open_page):
    use = [
        {"t": 1000 * at, "cpu": 50, "memory": at * 100 * 2**20, "memory_limit": 3 * 2**30, "gpus": []} for at in (0, 5)
    ]
    section = open_page(Points([], resources=use).answers, path=JOB_PATH).get_by_role("region", name="Use of resources")
    memory = section.locator("figure").nth(1)
    expect(memory.locator("figcaption")).to_have_text("Memory500 MiB of 3 GiB")
    expect(memory.locator("text[text-anchor=end]")).to_have_text([f"{each} MiB" for each in range(0, 501, 100)])


class Resumed(Api):
    """A second attempt that was resumed from step 15, and restarted within itself, after a first one of 19 steps."""

    @property
    def answers(self):
        first = {"name": "forecast-train-0123456789", "number": 1, "status": "Failed", "created": CREATED}
        first |= {"progress": {"step": 19, "total": 60}, "reason": "it was killed by SIGKILL"}
        own = {"name": NAMES[0], "number": 2, "status": "Complete", "created": CREATED, "resumed_from": 15}
        return {**super().answers, f"api/dags/{DAG}/attempts": {"attempts": [first, own]}}

    def log(self, query):
        steps = range(1, 20) if "attempt" in query else [*range(16, 31), *range(21, 41)]
        note = {} if "attempt" in query else {"resumed_from": 15}
        points = [{"step": step, "metrics": {"loss": 1 / step}, **note} for step in steps]
        self.logs.append(query)
        part = {"lines": [], "times": [], "resources": [], "cursor": "{}", "complete": True, "left_out": 0}
        return {**part, "points": points}


@pytest.fixture
def resumed(open_page):
    return open_page(Resumed().answers, path=JOB_PATH)


def test_earlier_attempts_and_restarts_are_pale_curves_behind_the_current_one(resumed):
    curves = resumed.locator("#curves .plot path.curve")
    expect(curves).to_have_count(3)
    assert [each.get_attribute("class") for each in curves.all()] == ["curve pale", "curve pale", "curve color-0"]
    expect(resumed.locator("#curves figcaption")).to_have_text("loss0.025 at step 40")
    expect(resumed.get_by_role("img", name="loss from 0.04762 at step 21 to 0.025 at step 40")).to_be_visible()
    expect(resumed.locator("#curves text.mark")).to_have_text("resumed from step 15")


def test_the_pointer_shows_the_attempt_that_has_a_value_there(resumed):
    chart = resumed.locator("#curves").get_by_role("img")
    chart.focus()
    resumed.keyboard.press("Home")
    expect(resumed.locator("#curves .values > div")).to_have_text(["step 1", "attempt 11"])
    resumed.keyboard.press("End")
    expect(resumed.locator("#curves .values > div")).to_have_text(["step 40", "attempt 20.025"])


def test_each_other_attempt_is_a_link_with_its_reason(resumed):
    rows = resumed.get_by_role("table", name="Attempts").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("step 19 of 60")
    expect(rows.nth(1)).to_contain_text("it was killed by SIGKILL")
    link = rows.nth(1).get_by_role("link", name="Attempt 1")
    assert link.get_attribute("href").endswith("&map_index=-1&attempt=forecast-train-0123456789")
    expect(rows.nth(2).get_by_role("link")).to_have_count(0)
    expect(rows.nth(2)).to_contain_text("step 15")
    expect(resumed.get_by_role("heading", level=1)).to_have_text("train attempt 2 of 2")
