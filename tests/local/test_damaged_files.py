"""Damaged files of one job: one line reports it, and other jobs work."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from local_jobs import PATIENCE, processes_of, returns, supervisor_of, wait_until_dead, waits_at

from trainer_core import BackendUnavailableError, ConflictError, Owner, Suspend, TrainerError
from trainer_core.backends.local import job_record, job_store
from trainer_core.testing.case import wait_until_suspended

DAMAGES = [b"", b'{"uid": "12', b"\xff\xfe\x00\x01", b"[1, 2]", b'{"steps": [], "unknown": 1}']
CHANGES = pytest.mark.parametrize(
    "change", [lambda path: path.write_text("damaged"), Path.unlink], ids=["damaged", "removed"]
)
FILES = ["status.json", "request.json", "plan.json", "events.jsonl", "lock"]


def test_a_status_that_another_program_changed_is_an_error_of_one_line_that_says_what_to_do(client, ask, home):
    ref = client.submit(ask())
    client.wait(ref)
    for damage in DAMAGES:
        (home / "jobs/job/status.json").write_bytes(damage)
        with pytest.raises(
            BackendUnavailableError, match=r"status\.json was changed by .*; `trainjob delete job` removes it$"
        ) as error:
            client.observe(ref)
        assert (len(str(error.value).splitlines()), error.value.transient) == (1, False)


def test_a_durable_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_call_returns(
    tmp_path, monkeypatch
):
    path, synced, fsync = tmp_path / "status.json", [], os.fsync

    def sync(descriptor):
        file = Path(f"/proc/self/fd/{descriptor}").resolve()
        synced.append((file.read_text() if file.is_file() else file, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    job_store.write_json(path, {"status": "Complete"}, durable=True)
    assert synced == [('{"status": "Complete"}', False), (tmp_path, True)]


def test_other_jobs_are_listed_when_files_of_one_job_are_damaged_or_missing(client, ask, home):
    for name in ("damaged", "fine"):
        client.wait(client.submit(ask(name=name)))
    whole = home.parent / "whole"
    shutil.copytree(home / "jobs/damaged", whole)
    for file in FILES:
        for damage in DAMAGES:
            (home / "jobs/damaged" / file).write_bytes(damage)
            assert "fine" in [job.name for job in client.list_jobs()]
        (home / "jobs/damaged" / file).unlink()
        assert "fine" in [job.name for job in client.list_jobs()]
        shutil.copy(whole / file, home / "jobs/damaged" / file)


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_job_can_be_deleted(client, ask, home, file):
    client.wait(client.submit(ask()))
    (home / "jobs/job" / file).write_text("damaged")
    client.delete_job("job")
    assert client.list_jobs() == []


@CHANGES
def test_a_running_job_whose_status_another_program_changed_is_deleted_with_its_processes(
    client, running, home, gate, change
):
    ref = running(waits_at, {"gate": gate})
    change(home / "jobs/job/status.json")
    client.delete_job("job")
    assert processes_of(ref.uid) == []
    assert list((home / "jobs").iterdir()) == []


@CHANGES
def test_a_suspended_job_whose_status_another_program_changed_is_deleted_with_its_supervisor(client, ask, home, change):
    client.submit(ask(options=[Suspend()]))
    supervisor = supervisor_of(home, "job")
    wait_until_suspended(client, "job")
    change(home / "jobs/job/status.json")
    client.delete_job("job")
    assert wait_until_dead([supervisor])
    assert list((home / "jobs").iterdir()) == []


@CHANGES
def test_a_job_of_which_no_file_has_the_identity_is_left_and_the_error_names_its_folder(client, ask, home, change):
    client.wait(client.submit(ask()))
    for file in ("status.json", "plan.json"):
        change(home / "jobs/job" / file)
    with pytest.raises(BackendUnavailableError, match=f"end the processes of the job and remove {home}/jobs/job$"):
        client.delete_job("job")


@pytest.mark.parametrize("path", ["", "trainer_core", "trainer_core/node", "trainer_core/node/bootstrap.py"])
def test_the_next_submit_repairs_the_programs_of_the_nodes_whatever_has_their_names(client, ask, home, path):
    client.wait(client.submit(ask()))
    (kit,) = (home / "kits").iterdir()
    kit.rename(home.parent / "whole")
    (kit / path).parent.mkdir(parents=True, exist_ok=True)
    (kit / path).mkdir() if path.endswith(".py") else (kit / path).write_text("")
    assert client.wait(client.submit(ask(name="next"))).status == "Complete"


def test_files_and_empty_folders_are_not_listed_as_jobs(client, ask, home, caplog):
    client.wait(client.submit(ask()))
    (home / "jobs/empty").mkdir()
    (home / "jobs/a-file").touch()
    assert [job.name for job in client.list_jobs()] == ["job"]
    assert [len(record.getMessage().splitlines()) for record in caplog.records] == [1]


def test_submitting_a_name_with_a_damaged_request_is_refused_in_one_line(client, ask, home):
    client.wait(client.submit(ask()))
    (home / "jobs/job/request.json").write_text("damaged")
    with pytest.raises(ConflictError, match=r"'job' exists, but .*request\.json.*delete") as refused:
        client.submit(ask())
    assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(TrainerError, match=r"request\.json"):
        client.get_job_request(client.get_job_ref("job"))


def test_a_damaged_event_is_skipped(client, ask, home):
    client.wait(client.submit(ask()))
    with (home / "jobs/job/events.jsonl").open("a") as file:
        file.write('{"time": "yester\n')
    assert client.get_job_events("job")[-1].reason == "Complete"


def test_an_event_message_can_contain_unicode_line_separators(client, ask, home):
    client.wait(client.submit(ask()))
    job_record.append_event(home / "jobs/job/events.jsonl", "Odd", "one\x85two\u2028three")
    assert client.get_job_events("job")[-1].message == "one\x85two\u2028three"


def test_a_damaged_termination_message_does_not_hide_the_exit_code(client, running, home, gate):
    ref = running(waits_at, {"gate": gate})
    (home / "jobs/job/steps/node-0.json").write_text('{"error": 5}')
    (node,) = processes_of(ref.uid)
    node.kill()
    assert client.wait(ref, timeout=PATIENCE).diagnosis.exit_code == -9


def test_submitting_for_an_owner_with_a_damaged_earlier_attempt_is_refused(client, ask, home):
    request = client.build_request(
        trainer={"func": returns}, runtime="python", owner=Owner(key="dag/run/task", slug="train")
    )
    name = client.submit(request).name
    client.wait(name)
    (home / "jobs" / name / "request.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(ConflictError, match=f"'{name}' exists, but"):
        client.submit(request)
