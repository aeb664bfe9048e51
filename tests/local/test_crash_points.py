"""kill -9 at each change that a submitter or a supervisor makes: a job is there whole or not at all, and a retry helps.

Where test_submitters kills at random instants, this kills at every one that can leave something behind.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from local_jobs import PATIENCE, gone, left, processes_of, returns
from local_submitter import request_of as submitter_request
from local_submitter import submit

from trainer_core import BackendUnavailableError, Category, Owner

#: Makes every supervisor die at the change that DIE_AT says.
SITECUSTOMIZE = """
import os, sys
if "trainer_core.backends.local.supervisor" in sys.orig_argv:
    from local_faults import die_at
    die_at(int(os.environ["DIE_AT"]), os.environ.get("COUNT_INTO"))
"""


def request_of(client, key: str):
    owner = Owner(key=key, slug="crash")
    return client.request(runtime="python", trainer={"func": returns}, owner=owner)


@pytest.fixture
def supervisors_die(tmp_path, monkeypatch):
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "faults"), here]))
    return lambda number: monkeypatch.setenv("DIE_AT", str(number))


@pytest.fixture
def changes_of_a_supervisor(client, supervisors_die, tmp_path, monkeypatch):
    supervisors_die(0)
    with monkeypatch.context() as counting:
        counting.setenv("COUNT_INTO", str(tmp_path / "changes"))
        ref = client.submit(request_of(client, "count"))
        client.wait(ref)
        left(Path(ref.namespace), ref.name)
    return len((tmp_path / "changes").read_text().splitlines())


def contents(home, place):
    return list((home / place).iterdir())


@pytest.mark.timeout(300)
def test_a_supervisor_that_dies_while_it_takes_a_job_over_leaves_all_of_it_or_nothing(client, supervisors_die, home):
    for number in range(1, 14):
        request = request_of(client, f"owner {number}")
        supervisors_die(number)
        refs = []
        with suppress(BackendUnavailableError):
            refs.append(client.submit(request))
        assert [found.name for found in client.find(request)] == [ref.name for ref in refs]
        assert [client.wait(ref, timeout=PATIENCE).diagnosis.retryable for ref in refs] == [True] * len(refs)
        supervisors_die(0)
        assert client.wait(client.submit(request), timeout=PATIENCE).succeeded
        assert contents(home, "staging") == []


@pytest.mark.timeout(300)
def test_a_supervisor_that_dies_at_any_change_leads_to_a_failure_worth_a_retry_or_to_the_result(
    client, supervisors_die, changes_of_a_supervisor
):
    assert changes_of_a_supervisor > 25
    for number in range(14, changes_of_a_supervisor + 1, 5):
        supervisors_die(number)
        ref = client.submit(request_of(client, f"owner {number}"))
        outcome = client.wait(ref, timeout=PATIENCE)
        end = outcome.diagnosis.category if outcome.diagnosis else outcome.result
        assert end in (Category.INFRASTRUCTURE, 1)
        assert gone(processes_of(ref.uid))
        supervisors_die(0)
        assert client.wait(client.submit(request_of(client, f"owner {number}")), timeout=PATIENCE).result == 1


@pytest.mark.timeout(300)
def test_a_submitter_that_dies_at_any_change_leads_to_one_job_after_its_retry(processes, client, home, book, tmp_path):
    def submit_and_die(name, number, count_into=None):
        submitter = processes.Process(target=submit, args=(home, book, name, None, number, count_into))
        submitter.start()
        submitter.join(PATIENCE)

    submit_and_die("count", 0, str(tmp_path / "changes"))
    moments = different((tmp_path / "changes").read_text().splitlines())
    assert len(moments) > 20
    names = [f"job{number}" for number in moments[::3]]
    for name in names:
        submit_and_die(name, int(name.removeprefix("job")))
    refs = [client.submit(submitter_request(client, book, name)) for name in names]
    assert [client.wait(ref, timeout=PATIENCE).status for ref in refs] == ["Complete"] * len(refs)
    assert {(book / name).read_text() for name in names} == {"one run\n"}


def different(changes: list[str]) -> list[int]:
    """Numbers of the changes that come after others than before: copying a file is the same each time."""
    seen: dict[tuple[str, ...], int] = {}
    for number in range(1, len(changes) + 1):
        seen.setdefault(tuple(changes[max(0, number - 5) : number]), number)
    return sorted(seen.values())
