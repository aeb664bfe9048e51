"""Submitters and supervisors are killed before each of their side effects: a job is complete or absent, a retry helps.

test_submitters.py kills at random instants; these tests kill at every side effect that could leave something behind.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from local_jobs import PATIENCE, counts_and_exits, processes_of, returns, wait_for_supervisor_exit, wait_until_dead
from local_submitter import build_request as build_submitter_request, submit

from trainer_core import BackendUnavailableError, Category, Owner, RestartPolicy

pytestmark = pytest.mark.slow

#: The first side effect of a supervisor after its job is created.
FIRST = 18
#: A sitecustomize module that kills every supervisor before the side effect with the number DIE_AT.
SITECUSTOMIZE = """
import os, sys
if "trainer_core.backends.local.supervisor" in sys.orig_argv:
    from local_faults import die_at
    die_at(int(os.environ["DIE_AT"]), os.environ.get("COUNT_INTO"))
"""


def build_request(client, key: str):
    owner = Owner(key=key, slug="crash")
    return client.build_request(runtime="python", trainer={"func": returns}, owner=owner)


@pytest.fixture
def supervisors_die(tmp_path, monkeypatch):
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "faults"), here]))
    return lambda number: monkeypatch.setenv("DIE_AT", str(number))


@pytest.fixture
def num_supervisor_changes(client, supervisors_die, tmp_path, monkeypatch):
    supervisors_die(0)
    with monkeypatch.context() as counting:
        counting.setenv("COUNT_INTO", str(tmp_path / "changes"))
        ref = client.submit(build_request(client, "count"))
        client.wait(ref)
        wait_for_supervisor_exit(Path(ref.namespace), ref.name)
    return len((tmp_path / "changes").read_text().splitlines())


def list_folder(home, name):
    return list((home / name).iterdir())


def test_a_supervisor_killed_before_its_job_is_created_leaves_the_complete_job_or_nothing(
    client, supervisors_die, home
):
    for number in range(1, FIRST + 1):
        request = build_request(client, f"owner {number}")
        supervisors_die(number)
        refs = []
        with suppress(BackendUnavailableError):
            refs.append(client.submit(request))
        assert [found.name for found in client.find_jobs(request)] == [ref.name for ref in refs]
        assert [client.wait(ref, timeout=PATIENCE).diagnosis.retryable for ref in refs] == [True] * len(refs)
        supervisors_die(0)
        assert client.wait(client.submit(request), timeout=PATIENCE).succeeded
        assert list_folder(home, "staging") == []
    assert refs, "FIRST is not the first one after the creation"


def test_a_supervisor_killed_at_any_side_effect_leads_to_a_retryable_failure_or_the_result(
    client, supervisors_die, num_supervisor_changes
):
    assert num_supervisor_changes > 25
    for number in range(FIRST, num_supervisor_changes + 1, 5):
        supervisors_die(number)
        ref = client.submit(build_request(client, f"owner {number}"))
        outcome = client.wait(ref, timeout=PATIENCE)
        end = outcome.diagnosis.category if outcome.diagnosis else outcome.result
        assert end in (Category.INFRASTRUCTURE, 1)
        assert wait_until_dead(processes_of(ref.uid))
        supervisors_die(0)
        assert client.wait(client.submit(build_request(client, f"owner {number}")), timeout=PATIENCE).result == 1


def test_a_supervisor_killed_at_any_side_effect_of_a_restart_exceeds_no_budget(
    client, supervisors_die, tmp_path, monkeypatch
):
    def run(number: int):
        policy = RestartPolicy(max_restarts=2, exit_codes={3: "count"}, delay=0)
        trainer = {"func": counts_and_exits, "func_args": {"starts": str(tmp_path / f"starts-{number}")}}
        supervisors_die(number)
        ref = client.submit(client.build_request(runtime="python", trainer=trainer, options=[policy]))
        supervisors_die(0)
        outcome = client.wait(ref, timeout=PATIENCE)
        return outcome.restarts, len((tmp_path / f"starts-{number}").read_text().splitlines())

    with monkeypatch.context() as counting:
        counting.setenv("COUNT_INTO", str(tmp_path / "changes"))
        restarts, starts = run(0)
    assert (restarts.total, restarts.following, starts) == (2, None, 3)
    changes = select_distinct((tmp_path / "changes").read_text().splitlines())
    numbers = [each for each in changes if each >= FIRST][::4]
    assert numbers
    for number in numbers:
        restarts, starts = run(number)
        assert (restarts.counted, restarts.following) == (2, None)
        assert 2 <= starts <= 3


def test_a_submitter_killed_at_any_side_effect_leads_to_one_job_after_its_retry(
    processes, client, home, run_log, tmp_path
):
    def submit_and_die(name, number, count_into=None):
        submitter = processes.Process(target=submit, args=(home, run_log, name, None, number, count_into))
        submitter.start()
        submitter.join(PATIENCE)

    submit_and_die("count", 0, str(tmp_path / "changes"))
    numbers = select_distinct((tmp_path / "changes").read_text().splitlines())
    assert len(numbers) > 20
    names = [f"job{number}" for number in numbers[::3]]
    for name in names:
        submit_and_die(name, int(name.removeprefix("job")))
    refs = [client.submit(build_submitter_request(client, run_log, name)) for name in names]
    assert [client.wait(ref, timeout=PATIENCE).status for ref in refs] == ["Complete"] * len(refs)
    assert {(run_log / name).read_text() for name in names} == {"one run\n"}


def select_distinct(changes: list[str]) -> list[int]:
    """Return the numbers of side effects that follow a new sequence of five; copying the n-th file is not new."""
    seen: dict[tuple[str, ...], int] = {}
    for number in range(1, len(changes) + 1):
        seen.setdefault(tuple(changes[max(0, number - 5) : number]), number)
    return sorted(seen.values())
