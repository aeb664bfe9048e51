"""What every test may rely on."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadFileScheduling

# A shell that starts the suite in the background hands down an ignored SIGINT, and so would we to every process of a
# test: Ctrl-C would do nothing there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anybody imports it: failed assertions of the contract show their values.
pytest.register_assert_rewrite("trainer_core.testing")

# A submit to a cluster that cannot be reached fails at once, where a test does not say otherwise. Programs inherit it.
os.environ["TRAINJOB_SUBMIT_RETRY_SECONDS"] = "0"

# Modules below it have no version: no training of a test could be reused.
os.environ.pop("PYTHONPATH", None)

# The time of an example depends on how busy the machine is.
# The same examples in each run: `make attack` draws others.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
# Hypothesis also draws constants from the source of each imported module: seconds to read, and other examples in each
# worker.
providers._get_local_constants = lambda: providers._local_constants

# Collecting makes nothing but objects that stay: a quarter of its time was spent in the garbage collector.
gc.disable()

#: Fixtures that start a browser, an MLflow server, or containers.
_SLOW_FIXTURES = {"open_page", "mlflow_uri", "sandbox"}


def pytest_itemcollected(item):
    """Mark tests as slow by what they start, and those that CI leaves out."""
    if item.get_closest_marker("deep") or _SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Files with slow tests first, and neighbours from different folders: a folder's files wait for the same things.

    With `--dist loadfile --no-loadscope-reorder` the workers of xdist take the files in this order. The largest files
    of a folder are first: one of them at the end would keep one worker busy, and the others idle.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    turns: Counter[tuple[bool, Path]] = Counter()
    order = {}
    for path, tests in sorted(files.items(), key=lambda file: -len(file[1])):
        is_fast = not any(test.get_closest_marker("slow") for test in tests)
        turns[is_fast, path.parent] += 1
        order[path] = (is_fast, turns[is_fast, path.parent])
    items.sort(key=lambda item: order[item.path])
    # All that is imported by now stays to the end: no collection of garbage needs to inspect it again.
    gc.freeze()
    gc.enable()


class _SharingPackages(LoadFileScheduling):
    """Distributes files, and packages of tests as one file: their tests share what is expensive to start."""

    def _split_scope(self, nodeid):
        path = Path(super()._split_scope(nodeid))
        return str(path.parent if (self.config.rootpath / path).with_name("__init__.py").exists() else path)

    def remove_node(self, node):
        """Hand the tests of a worker that crashed to others: not those of files that it has finished.

        Who is handed a file without a test that is left waits for ever.
        """
        work = self.assigned_work[node]
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]
        return super().remove_node(node)


def pytest_xdist_make_scheduler(config, log):
    return _SharingPackages(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter):
    """Show the reasons for which tests were skipped: the nine most frequent ones, and the number of the others."""
    reports = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports).most_common()
    if len(reasons) > 10:
        others = sum(count for _, count in reasons[9:])
        reasons[9:] = [(f"{len(reasons) - 9} other reasons, see `pytest -rs`", others)]
    if reasons:
        terminalreporter.write_sep("=", "skipped")
    for reason, count in reasons:
        terminalreporter.write_line(f"{count:5}  {' '.join(reason.split())[:112]}")


def pytest_unconfigure(config):
    """A process that does not end after its tests says where it hangs."""
    # A worker of xdist waits for the others.
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(60, file=sys.__stderr__)


@pytest.fixture(autouse=True)
def _restore_log_level():
    """Airflow sets the level of the root logger, and later tests of this process would see no warning."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
