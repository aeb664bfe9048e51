"""`trainjob debug`: pdb on a terminal, exit codes, secrets, and what it refuses."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import random
import re
import select
import termios
import time

import pytest
import yaml

from trainer_core import LocalProcessBackendConfig, TrainerClient
from trainer_core.backends.local.job_store import StateFolder

# Each starts a debugger in a terminal.
pytestmark = pytest.mark.slow

#: Seconds; much longer than needed.
PATIENCE = 300
TRAINING = """
def train(steps: int = 3) -> dict:
    import os
    from pathlib import Path

    from trainer_core import checkpoints, dataset_path

    store, mode = checkpoints(), os.environ.get("MODE")
    print("token of", len(os.environ.get("TOKEN", "")), "characters")
    last = store.latest()
    for step in range((last.step if last else 0) + 1, steps + 1):
        if step == steps and mode == "raise":
            half = step / 2
            raise RuntimeError(f"half is {half}, {os.getpid()}")
        if step == steps and mode == "another":
            raise RuntimeError("another line")
        if mode == "exit":
            os._exit(3)
        with store.save(step) as folder:
            (folder / "weights.txt").write_text(str(step))
    return {"files": sorted(path.name for path in dataset_path().iterdir())} if mode == "read" else {"steps": steps}
"""


class Terminal:
    """A program on a separate terminal."""

    def __init__(self, trainjob, *arguments):
        self.side, other = pty.openpty()
        # getpass opens the controlling terminal.
        control = {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
        self.process = trainjob.start(*arguments, stdin=other, stdout=other, stderr=other, **control)
        os.close(other)
        self.text = ""

    def expect(self, pattern):
        """Read until a pattern matches what was not matched before, and return the text up to its end."""
        end = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self.text)):
            assert select.select([self.side], [], [], max(0, end - time.monotonic()))[0], self.text
            self.text += os.read(self.side, 4096).decode()
        seen, self.text = self.text[: match.end()], self.text[match.end() :]
        return seen

    def send(self, line):
        os.write(self.side, f"{line}\n".encode())

    def end(self):
        """Read to the end, and return the rest of the text and the exit code."""
        while True:
            try:
                data = os.read(self.side, 4096)
            except OSError:
                break
            if not data:
                break
            self.text += data.decode()
        os.close(self.side)
        return self.text, self.process.wait(PATIENCE)


@pytest.fixture
def failed(trainjob):
    """Submits a job that fails, and returns its name."""

    def submit(mode="raise", name="night", **more):
        (trainjob.folder / "job.py").write_text(TRAINING)
        definition = {
            "name": name,
            "runtime": "python",
            "trainer": {"func": "job:train", "env": {"MODE": mode}, **more.pop("trainer", {})},
            "options": [{"Checkpoints": {"every_steps": 1}}],
            **more,
        }
        (trainjob.folder / "job.yaml").write_text(yaml.safe_dump(definition))
        assert trainjob("submit", "--file", "job.yaml", "--wait").returncode == 1
        return name

    return submit


def wait_for_the_supervisor(home, name):
    """It still removes a file after the end of its job."""
    folder, end = StateFolder(home).job_folder(name), time.monotonic() + PATIENCE
    while folder.is_supervised():
        assert time.monotonic() < end
        time.sleep(0.02)


def hash_files(folder):
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_pdb_starts_at_the_line_that_raised_and_the_store_stays_as_it_was(trainjob, failed):
    name = failed()
    wait_for_the_supervisor(trainjob.folder / "home", name)
    before = hash_files(trainjob.folder / "home")
    terminal = Terminal(trainjob, "debug", name, "--from-checkpoint")
    assert "resumed from step 2" in terminal.expect(r"\(Pdb\) ")
    terminal.send("p half, step")
    assert "(1.5, 3)" in terminal.expect(r"\(Pdb\) ")
    terminal.send("q")
    text, code = terminal.end()
    assert "same error as night: UserCode in node-0: RuntimeError: half is 1.5" in text
    assert code == 1
    assert hash_files(trainjob.folder / "home") == before


def test_a_breakpoint_stops_each_time_its_line_is_reached_and_leaving_it_ends_the_command(trainjob, failed):
    terminal = Terminal(trainjob, "debug", failed(), "--break", "job.py:12")
    for step in (1, 2):
        assert "job.py(12)train()" in terminal.expect(r"\(Pdb\) ")
        terminal.send("p step")
        assert f"\n{step}\r\n" in terminal.expect(r"\(Pdb\) ")
        terminal.send("c")
    terminal.expect(r"\(Pdb\) ")
    terminal.send("q")
    text, code = terminal.end()
    assert code == 130
    assert "Traceback" not in text


def test_a_secret_is_asked_for_and_neither_printed_nor_written(trainjob, failed, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKEN", "in the cluster")
    name = failed(trainer={"env": {"MODE": "raise", "TOKEN": {"name": "hub", "key": "token"}}})
    monkeypatch.delenv("TOKEN")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    terminal = Terminal(trainjob, "debug", name)
    seen = terminal.expect(r"TOKEN \(Secret hub, key token\): ")
    terminal.send("s3cr3t-of-mine")
    seen += terminal.expect(r"\(Pdb\) ")
    assert "token of 14 characters" in seen
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    terminal.send("q")
    text, code = terminal.end()
    assert code == 1
    assert "s3cr3t" not in seen + text
    assert {b"s3cr3t" in each for each in written} == {False}
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_secret_that_is_missing_without_a_terminal_is_named(trainjob, failed, monkeypatch):
    monkeypatch.setenv("TOKEN", "in the cluster")
    name = failed(trainer={"env": {"MODE": "raise", "TOKEN": {"name": "hub", "key": "token"}}})
    monkeypatch.delenv("TOKEN")
    monkeypatch.setattr("sys.stdin", None)
    done = trainjob("debug", name)
    assert done.returncode == 2
    assert done.stderr.endswith("TOKEN (Secret hub, key token) is not set here; export it, or run this on a terminal\n")
    done = trainjob("debug", name, "--env", "TOKEN=secret")
    assert done.returncode == 2
    assert "every user of this machine can read a command line; export TOKEN and give --env TOKEN" in done.stderr


def test_the_exit_code_tells_whether_the_failure_is_the_same(trainjob, failed):
    name = failed()
    same = trainjob("debug", name, "--no-pdb")
    another = trainjob("debug", name, "--no-pdb", "--env", "MODE=another")
    none = trainjob("debug", name, "--no-pdb", "--env", "MODE=none")
    assert [each.returncode for each in (same, another, none)] == [1, 7, 0]
    assert same.stderr.startswith("trainjob: train of TrainJob night on this machine\nTraceback ")
    assert "another error here: UserCode in node-0: RuntimeError: another line; night failed: " in another.stderr
    assert "no error here; night failed: UserCode in node-0: RuntimeError: half is 1.5" in none.stderr


def test_a_function_that_ends_its_process_ends_here_in_the_same_way(trainjob, failed):
    name = failed("exit")
    done = trainjob("debug", name, "--no-pdb")
    assert done.returncode == 1
    assert "same error as night: UserCode in node-0: it ended with exit code 3" in done.stderr


def test_the_ranks_of_several_nodes_run_as_local_processes(trainjob, failed):
    name = failed(trainer={"env": {"MODE": "raise"}, "num_nodes": 2})
    alone = trainjob("debug", name, "--no-pdb")
    assert (
        "world size: 2 nodes, 1 processes each; here one process, rank 0, with WORLD_SIZE=1; --on local --nodes 2"
        in (alone.stderr)
    )
    done = trainjob("debug", name, "--on", "local", "--nodes", "2", "--from-checkpoint", "1")
    assert done.returncode == 1
    assert "train of TrainJob night on this machine, from the checkpoint of step 1\n" in done.stderr
    assert re.search(r"\[node-1\] RuntimeError: half is 1.5", done.stdout)
    assert "same error as night" in done.stderr


def test_a_dataset_here_replaces_that_of_the_job(trainjob, failed, tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "all.csv").touch()
    name = failed(initializer={"dataset": (tmp_path / "all").as_uri()})
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "few.csv").touch()
    client = TrainerClient(LocalProcessBackendConfig(home=trainjob.folder / "home"))
    result = client.debug(name, pdb=False, dataset="sample", env={"MODE": "read"})
    assert result.outcome.result == {"files": ["few.csv"]}
    assert result.left_out == (f"dataset {(tmp_path / 'all').as_uri()}: replaced by {(tmp_path / 'sample').as_uri()}",)


REFUSED = {
    "--break job.py": "--break must be FILE:LINE, such as train.py:12, got 'job.py'",
    "--break job.py:٣": "--break must be FILE:LINE",
    "--break job.py:3 --no-pdb": "a breakpoint needs the debugger",
    "--nodes 2": "nodes: the debug backend runs rank 0 alone; use on='local' (--on local)",
    "--on local --nodes 0": "nodes must be at least 1, got 0",
    "--on runai": "on must be debug or local, got 'runai'",
    "--dataset absent": "--dataset 'absent' does not exist",
    "--from-checkpoint 7": "has no checkpoint of step 7; it has those of 1, 2",
    "--from-checkpoint=last": "--from-checkpoint must be the step of a checkpoint, got 'last'",
    "--env =x": "--env must be NAME or NAME=VALUE, got '=x'",
    "--env NOT_THERE": "--env NOT_THERE: this shell has no such variable",
}


def test_what_cannot_be_asked_for_is_refused_in_one_line(trainjob, failed):
    name = failed()
    for arguments, message in REFUSED.items():
        done = trainjob("debug", name, *arguments.split())
        (line,) = done.stderr.splitlines()
        assert (done.returncode, message in line) == (2, True), line


def test_a_job_without_a_function_is_refused(trainjob, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").touch()
    trainjob("initialize", "--dataset", (tmp_path / "data").as_uri(), "--name", "fetch", "--wait")
    done = trainjob("debug", "fetch")
    assert done.returncode == 2
    assert "TrainJob 'fetch' runs only initializers and no Python function" in done.stderr


def test_a_record_that_was_changed_is_refused(trainjob, failed):
    name = failed()
    record = trainjob.folder / "home" / "jobs" / name / "request.json"
    record.write_text(record.read_text().replace("half = step / 2", "half = step / 3"))
    done = trainjob("debug", name, "--no-pdb")
    assert done.returncode == 2
    assert "the function does not match its digest; it was changed" in done.stderr


def test_files_of_a_project_that_are_lost_are_named_with_their_place(trainjob, failed):
    (trainjob.folder / "code").mkdir()
    noise = random.Random(1).randbytes(400_000)  # noqa: S311 -- a file that cannot be compressed
    (trainjob.folder / "code" / "noise.bin").write_bytes(noise)
    (trainjob.folder / "code" / "broken.py").write_text("def train():\n    raise ValueError\n")
    place = trainjob.folder / "place"
    name = failed(trainer={"func": "broken:train", "code": "code", "code_uri": place.as_uri()})
    assert trainjob("debug", name, "--no-pdb").returncode == 1
    (stored,) = place.iterdir()
    stored.write_bytes(b"damaged")
    assert "the files of code do not match their digest" in trainjob("debug", name, "--no-pdb").stderr
    stored.unlink()
    done = trainjob("debug", name, "--no-pdb")
    assert done.returncode == 2
    assert f"the files of its function were at {stored.as_uri()}: No such file" in done.stderr


def test_a_pickled_function_is_debugged(trainjob, failed):
    name = failed(trainer={"func": "job:train", "packaging": "cloudpickle", "env": {"MODE": "raise"}})
    done = trainjob("debug", name, "--no-pdb")
    assert (done.returncode, "same error as night" in done.stderr) == (1, True)


def test_the_failure_of_a_wait_ends_with_the_command(trainjob, failed):
    name = failed()
    last = trainjob("wait", name).stderr.splitlines()[-1]
    assert last.endswith(f"; debug it with `trainjob --home {trainjob.folder / 'home'} debug {name}`")
    assert trainjob("--home", str(trainjob.folder / "home"), "debug", name, "--no-pdb").returncode == 1
