"""Play one-line mistakes on the modules that decide, and print those that no test notices (`make mutants`).

Each mutant changes one expression or statement of a module, in a copy of the checkout. The tests that `MODULES` lists
for the module run against it up to the first failure, in a forked process that has imported all libraries: first those
that run the changed line without a change, the quickest first. The seed and the text of a mutant decide whether it is
played: a change of one line leaves the others the same. tools/mutants_equivalent.txt lists mutants that change no
behaviour.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / "tools/mutants_equivalent.txt"
#: Chooses the mutants; the number of each module.
SEED, EACH = "1", 7

#: Modules that decide, and their tests, the quickest and most specific first.
MODULES = {
    "trainer_core/lifecycle/adoption.py": "unit/test_adoption.py",
    "trainer_core/lifecycle/wait_state.py": "unit/test_wait_state.py cli/test_cli_output.py",
    "trainer_core/lifecycle/diagnosis.py": "unit/test_diagnosis.py",
    "trainer_core/lifecycle/restart_policy.py": "unit/test_restart_policy.py",
    "trainer_core/lifecycle/attempt_memory.py": "unit/test_attempt_memory.py",
    "trainer_core/lifecycle/next_attempt.py": "unit/test_attempts.py",
    "trainer_core/lifecycle/debugging.py": "unit/test_debugging.py",
    "trainer_core/lifecycle/reuse.py": "unit/test_reuse.py",
    "trainer_core/client/attempts.py": "unit/test_attempts.py kubernetes/test_k8s_restart_policy.py::"
    "test_the_next_attempt_has_the_files_of_the_project_which_are_in_the_arguments_of_the_first",
    "trainer_core/model/restart_rules.py": "unit/test_restart_policy.py",
    "trainer_core/definition/options/stalled.py": "unit/test_attendant.py unit/test_options.py",
    "trainer_core/definition/options/more_memory.py": "unit/test_attempt_memory.py unit/test_options.py",
    "trainer_core/node/attendant.py": "unit/test_attendant.py",
    "trainer_core/node/beats.py": "unit/test_attendant.py",
    "trainer_core/base/naming.py": "unit/test_naming.py",
    "trainer_core/base/retries.py": "unit/test_repeated_calls.py",
    "trainer_core/search/snapshot.py": "search/test_snapshot.py",
    "trainer_core/search/tables.py": "search/test_tables.py search/test_snapshot.py",
    "trainer_core/search/results.py": "search/test_tables.py",
    "trainer_core/search/space.py": "search/test_space_and_definition.py",
    "trainer_core/search/decisions.py": "unit/test_search_decisions.py search/test_driver.py",
    "trainer_core/search/early_stop.py": "unit/test_early_stop.py",
    "trainer_core/search/driver.py": "search/test_driver.py search/test_snapshot.py",
    "trainer_core/model/logs.py": "unit/test_logs.py unit/test_progress.py",
    "trainer_core/backends/polling_follower.py": "unit/test_polling_follower.py",
    "trainer_core/backends/local/observations.py": "local/test_job_observation.py local/test_damaged_files.py "
    "local/test_other_hosts.py",
    "trainer_core/backends/local/job_store.py": "local/test_job_store.py local/test_damaged_files.py "
    "local/test_state_folder.py local/test_other_hosts.py local/test_garbage_collection.py local/test_full_disk.py",
    "trainer_core/backends/local/runner.py": "local/test_local_logs.py local/test_supervisor.py "
    "local/test_suspend_resume.py local/test_local_fetching.py local/test_job_queue.py",
    "trainer_core/backends/container/outcome.py": "containers/test_container_observation.py "
    "containers/test_container_reconcile.py",
    "trainer_core/backends/container/reconcile.py": "containers/test_container_reconcile.py",
    "trainer_core/backends/container/observations.py": "containers/test_container_observation.py",
    "trainer_core/backends/runai/parse.py": "runai/test_runai_parse.py",
    "trainer_core/backends/runai/validation.py": "runai/test_runai_validation.py runai/test_runai_manifest.py",
    "trainer_core/k8s/failure_facts.py": "kubernetes/test_k8s_failure_facts.py "
    "kubernetes/test_k8s_pod_state.py kubernetes/test_k8s_recorded_outcomes.py kubernetes/test_k8s_job_scenarios.py",
    "trainer_core/k8s/pod_state.py": "kubernetes/test_k8s_pod_state.py kubernetes/test_k8s_failure_facts.py "
    "kubernetes/test_k8s_job_scenarios.py",
    "trainer_core/k8s/failure_reasons.py": "kubernetes/test_k8s_failure_facts.py "
    "kubernetes/test_k8s_job_scenarios.py kubernetes/test_k8s_capacity.py",
    "trainer_core/k8s/observations.py": "kubernetes/test_k8s_observation.py kubernetes/test_k8s_train_job.py "
    "kubernetes/test_k8s_recorded_outcomes.py",
    "trainer_core/k8s/job_state.py": "kubernetes/test_k8s_observation.py kubernetes/test_k8s_recorded_outcomes.py "
    "kubernetes/test_k8s_failure_facts.py kubernetes/test_k8s_job_scenarios.py",
    "trainer_core/k8s/log_cursor.py": "kubernetes/test_k8s_log_cursor.py kubernetes/test_k8s_logs.py",
    "trainer_core/k8s/reflector.py": "kubernetes/test_k8s_reflector.py kubernetes/test_k8s_cache.py "
    "kubernetes/test_k8s_informer.py",
    "trainer_core/k8s/informer.py": "kubernetes/test_k8s_informer.py",
    "trainer_core/k8s/watched_jobs.py": "kubernetes/test_k8s_informer.py kubernetes/test_k8s_cache.py",
    "trainer_core/node/checkpoint_folder.py": "unit/test_checkpoints.py",
    "trainer_core/node/checkpoint_tree.py": "unit/test_checkpoints.py fetch/test_checkpoint_trees.py",
    "trainer_core/node/checkpoint_ranks.py": "unit/test_checkpoint_ranks.py unit/test_checkpoints.py",
    "trainer_core/node/checkpoint_retention.py": "unit/test_checkpoints.py",
    "trainer_core/node/checkpoint_saves.py": "unit/test_checkpoints.py fetch/test_s3_checkpoints.py::"
    "test_two_ranks_save_one_checkpoint_and_stop_at_the_same_step",
    "trainer_core/node/checkpoints.py": "unit/test_checkpoints.py",
    "trainer_core/node/locks.py": "unit/test_locks.py",
    "trainer_core/node/termination.py": "unit/test_termination.py unit/test_bootstrap.py",
    "trainer_core/packaging/project.py": "unit/test_project_files.py unit/test_project_functions.py "
    "unit/test_project_imports.py",
    "trainer_core/tracking/model_registry.py": "tracking/test_model_registry.py",
    "trainer_core/tracking/run.py": "tracking/test_run_writer.py tracking/test_late_runs.py tracking/test_binding.py",
    "trainer_core/fetch/s3/download.py": "fetch/test_fetch_s3.py fetch/test_fetch_s3_faults.py",
    "airflow_provider/operators/trainjob.py": "airflow/test_operator.py airflow/test_reused_results.py",
    "airflow_provider/sensors/trainjob.py": "airflow/test_sensor.py",
    "airflow_provider/hooks/trainjob.py": "airflow/test_hook.py",
    "airflow_provider/trigger_event.py": "airflow/test_trigger.py",
    "airflow_provider/triggers/trainjob.py": "airflow/test_trigger.py airflow/test_trigger_on_kill.py",
    "kfp_components/step/executor_input.py": "kfp/test_kfp_executor.py",
    "kfp_components/step/outputs.py": "kfp/test_kfp_outputs.py kfp/test_kfp_executor.py kfp/test_kfp_wait.py",
    "kfp_components/step/wait.py": "kfp/test_kfp_wait.py kfp/test_kfp_follow.py",
}
#: Seconds after which a test hangs. All tests of a mutant hang after three times as long as without a change, or this.
TEST_TIMEOUT = 120
#: Seconds of the processor after which they loop without an end; or three times as many as without a change.
LOOP_SECONDS = 20

_OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGING = re.compile(r"_?log(ger|ging)?\.")


class Mutant(NamedTuple):
    """A change of a module; `start` and `end` are offsets in its bytes."""

    module: str
    function: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """What identifies it while other lines change."""
        return f"{self.module} {self.function}: {self.before} -> {self.after}"


def list_mutants(module: str, source: bytes) -> list[Mutant]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants = []
    for function, node, after in _walk(ast.parse(source), ""):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = " ".join(source[start:end].decode().split())
        mutants.append(Mutant(module, function, node.lineno, start, end, before, after))
    return mutants


def choose_mutants(module: str, source: bytes, seed: str, number: int) -> list[Mutant]:
    """Return some mutants of a module, at most one of a line, and none that is known to be equivalent."""
    mutants = list_mutants(module, source)
    equivalent = {line.partition("  # ")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    by_line: dict[int, Mutant] = {}
    for mutant in sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest()):
        if mutant.key not in equivalent:
            by_line.setdefault(mutant.line, mutant)
    return sorted(list(by_line.values())[:number], key=lambda mutant: mutant.line)


def _walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield the nodes to replace, each with its function and its new text."""
    if _is_logging(node) or (not function and _is_setting(node)):
        return
    for old, new in _change(node):
        yield function, old, f"({ast.unparse(new)})" if isinstance(old, ast.expr) else ast.unparse(new)
    for child in _list_children(node):
        name = getattr(child, "name", None) if isinstance(child, ast.stmt) else None
        yield from _walk(child, f"{function}.{name}".lstrip(".") if name else function)


def _list_children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what decides: no annotations, decorators, docstrings and messages."""
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
        return
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list", "bases"):
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST))


def _is_logging(node: ast.AST) -> bool:
    """Return whether a statement has no effect on what is decided: docstrings, log messages, imports of types."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or bool(_LOGGING.match(ast.unparse(node.value)))


def _is_setting(node: ast.AST) -> bool:
    """Return whether a statement of a module sets seconds: a test of one more or less would only repeat them."""
    values = ast.walk(node) if isinstance(node, ast.Assign) else ()
    return any(isinstance(value, ast.Constant) and isinstance(value.value, float) for value in values)


def _change(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:  # noqa: C901  (a table)
    """Yield what to replace of a node itself, not of its children, and the replacement."""
    match node:
        case ast.Compare(ops=[operator]) | ast.BoolOp(op=operator) | ast.BinOp(op=operator):
            if type(operator) in _OPERATORS and not _is_text(node):
                swapped, new = copy.copy(node), _OPERATORS[type(operator)]()
                if isinstance(swapped, ast.Compare):
                    swapped.ops = [new]
                else:
                    swapped.op = new
                yield node, swapped
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.Constant):
            yield node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.comprehension():
            yield from ((test, ast.UnaryOp(ast.Not(), test)) for test in node.ifs)
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from ((node, ast.Constant(changed)) for changed in (value + 1, value - 1))
        case ast.Call():
            if isinstance(node.func, ast.Name) and node.func.id in _NAMES:
                yield node.func, ast.Name(_NAMES[node.func.id])
            for keyword in (each for each in node.keywords if each.arg != "encoding"):
                kept = [each for each in node.keywords if each is not keyword]
                yield node, ast.Call(node.func, node.args, kept)
        case ast.Break() | ast.Continue():
            yield node, ast.Continue() if isinstance(node, ast.Break) else ast.Break()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, ast.Constant(None)
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield node, ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, ast.Pass()


def _is_text(node: ast.AST) -> bool:
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    return any(isinstance(part, ast.JoinedStr) or isinstance(getattr(part, "value", 0), str) for part in parts)


def copy_checkout(folder: Path) -> None:
    """Copy what Git tracks, and new files, as they are in the checkout."""
    listed = subprocess.run(
        ["/usr/bin/env", "git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        # Files that were deleted, and links to folders, such as a shared environment.
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def play(module: str, seed: str, number: int) -> tuple[float, list[tuple[Mutant, str, float]]]:
    """Run a module's tests without a change, then with each mutant; return verdicts, with seconds of processor time."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder, log = Path(name, "checkout"), Path(name, "log")
        copy_checkout(folder)
        os.chdir(folder)
        source = Path(module).read_bytes()
        mutants = choose_mutants(module, source, seed, number)
        with contextlib.suppress(FileNotFoundError):  # The tests of tracking need an MLflow server.
            Path(".venv-mlflow").symlink_to((ROOT / ".venv-mlflow").resolve(strict=True))
        tests = [f"tests/{test}" for test in MODULES[module].split()]
        since = time.monotonic()
        verdict, seconds = _run_tests(partial(_record, tests, module, Path(name, "recorded")), log, 1800)
        limit = max(TEST_TIMEOUT, 3 * (time.monotonic() - since))
        if verdict != "not noticed":
            return seconds, [(mutants[0], f"fails unchanged: {log.read_text()[-300:]}", 0)]
        recorded = json.loads(Path(name, "recorded").read_text(encoding="utf-8"))
        _import_libraries(recorded["libraries"])
        for compiled in Path(module).parent.glob(f"__pycache__/{Path(module).stem}.*"):
            compiled.unlink()
        loop_seconds = max(LOOP_SECONDS, int(3 * seconds))
        results = []
        for mutant in mutants:
            Path(module).write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
            order = [test for test, lines in recorded["lines"].items() if mutant.line in lines]
            results.append((mutant, *_run_tests(partial(_run_ordered, tests, order, loop_seconds), log, limit)))
        return seconds, results


def _import_libraries(names: list[str]) -> None:
    for name in names:
        # Submodules that their packages make themselves, and those that only work in a certain place.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _run_tests(run: Callable[[], int], log: Path, limit: float) -> tuple[str, float]:
    """Run tests in a forked process; return whether they fail, and the seconds of processor time."""
    since, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if not (pid := os.fork()):
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            # Processes that tests start import the copy as well.
            sys.path.insert(0, str(Path.cwd()))
            os.environ |= {"PYTHONPATH": str(Path.cwd()), "TMPDIR": str(Path.cwd().parent)}
            tempfile.tempdir = None
            os._exit(run())
        finally:  # Whatever a mutant does when it is imported.
            os._exit(70)
    ended = (0, 0)
    try:
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < since + limit:
            time.sleep(0.02)
    finally:  # Also after Ctrl-C.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    status = ended[1] if ended[0] else os.waitpid(pid, 0)[1]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return "noticed" if status else "not noticed", seconds


def _run_pytest(tests: list[str], timeout: int, plugin: object) -> int:
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-o", f"timeout={timeout}", *tests], [plugin]))


class _Recorder:
    """Records the lines of a module that each test runs in this process, and how long the test takes."""

    def __init__(self, module: str) -> None:
        self.path, self.lines, self.seconds = str(Path.cwd() / module), dict[str, set[int]](), dict[str, float]()
        self.test = ""
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != self.path:
            return None
        if event == "line":
            self.lines.setdefault(self.test, set()).add(frame.f_lineno)
        return self._trace

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration


def _record(tests: list[str], module: str, file: Path) -> int:
    """Run tests without a change; store the lines that each runs, the quickest test first, and imported libraries."""
    recorder = _Recorder(module)
    code = _run_pytest(tests, 600, recorder)
    sys.settrace(None)
    ours = str(Path.cwd())
    libraries = [
        name
        for name, module in sys.modules.items()
        if not str(getattr(module, "__file__", None) or ours).startswith(ours)
        # What a plug-in of pytest changes when it is imported, and what writes into the home folder.
        and not name.startswith(("pytest", "_", "hypothesis", "xdist", "airflow"))
    ]
    quickest = sorted(recorder.seconds, key=lambda test: recorder.seconds[test])
    lines = {test: sorted(recorder.lines.get(test, ())) for test in quickest}
    file.write_text(json.dumps({"libraries": libraries, "lines": lines}), encoding="utf-8")
    return code


class _Order:
    """Runs some tests first, after `tests/conftest.py` has sorted their files."""

    def __init__(self, tests: list[str]) -> None:
        self.ranks = {test: rank for rank, test in enumerate(tests)}

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        yield
        items.sort(key=lambda item: self.ranks.get(item.nodeid, len(self.ranks)))


def _run_ordered(tests: list[str], order: list[str], loop_seconds: int) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (loop_seconds, loop_seconds))
    # A mutant may have as many bytes as the one before it, and be as old to the second.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return _run_pytest(tests, TEST_TIMEOUT, _Order(order))


def _get_size(module: str) -> int:
    """Return the bytes of the tests of a module."""
    return sum((ROOT / "tests" / test.partition("::")[0]).stat().st_size for test in MODULES[module].split())


def main() -> int:
    """Play the mutants of all modules, or of those named, and print what was noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="parts of the modules' paths; all by default")
    parser.add_argument("--each", type=int, default=EACH, help="mutants of each module (default: %(default)s)")
    parser.add_argument("--seed", default=SEED, help="which mutants (default: %(default)s)")
    # Tests wait more than they compute.
    parser.add_argument("--processes", type=int, default=3 * (os.cpu_count() or 1), help="(default: %(default)s)")
    arguments = parser.parse_args()
    chosen = [name for name in MODULES if any(part in name for part in arguments.modules or [""])]
    # Those with the longest tests first: one of them at the end would keep one process busy, and the others idle.
    chosen.sort(key=_get_size, reverse=True)
    print(f"seed {arguments.seed}, {arguments.each} mutants of each module")
    print("seconds are of the processor: of the tests without a change, and of all mutants")
    print(f"{'module':48}{'mutants':>8}{'noticed':>8}{'tests, s':>9}{'all, s':>8}", flush=True)
    since, counts, total = time.monotonic(), Counter[str](), 0.0
    with ProcessPoolExecutor(arguments.processes) as pool:
        played = {pool.submit(play, name, arguments.seed, arguments.each): name for name in chosen}
        for each in as_completed(played):
            seconds, results = each.result()
            verdicts = Counter(verdict for _, verdict, _ in results)
            counts += verdicts
            spent = sum(each for *_, each in results)
            total += seconds + spent
            row = f"{played[each]:48}{len(results):8}{verdicts['noticed']:8}{seconds:9.1f}{spent:8.1f}"
            missed = [
                f"  {mutant.line} {mutant.function}: {mutant.before} -> {mutant.after}  # {verdict}"
                for mutant, verdict, _ in results
                if verdict != "noticed"
            ]
            print(row, *missed, sep="\n", flush=True)
    elapsed = time.monotonic() - since
    print(f"{counts['noticed']} of {counts.total()} noticed in {elapsed:.0f} s, {total:.0f} s of the processor")
    return int(counts["noticed"] < 0.9 * counts.total())


if __name__ == "__main__":
    sys.exit(main())
