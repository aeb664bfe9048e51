"""Checkpoints inside training: complete or absent, resumed from by the next start, common to all ranks."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from node_process import BARE, Node

from trainer_core.node import bootstrap, checkpoint_ranks, checkpoint_saves, checkpoints, env, progress
from trainer_core.node.checkpoint_folder import Checkpoint, CheckpointFolder, DamagedError, StorageError, parse_manifest
from trainer_core.node.checkpoint_retention import Retention
from trainer_core.node.checkpoints import CheckpointError, CheckpointStore, checkpoint_path
from trainer_core.packaging import argv_payload, serializer

#: Counts steps; each rank saves its own file. Prints what it does, one word a line.
TRAINING = """
import sys, time
from trainer_core import checkpoints, progress

def say(*words):
    print(*words, flush=True)

steps, seconds, background = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "True"
store = checkpoints()
last = store.latest()
say("from", last.step if last else 0)
for step in range((last.step if last else 0) + 1, steps + 1):
    time.sleep(seconds)
    if store.due(step):
        with store.save(step, {"loss": 1 / step}, background=background) as folder:
            (folder / f"rank-{store.rank}.txt").write_text(str(step))
        say("saved", step)
store.flush()
say("done")
"""


#: The ranks agree on a stop about every second, counted in steps; from step 200 on a step takes 500 times as long.
#: Rank 1 gets SIGTERM at step 203, from itself: a test that sends it may be later.
SLOWING = TRAINING.replace(
    "time.sleep(seconds)",
    """time.sleep(0.001 if step <= 200 else 0.5)
    if step == 203 and store.rank == 1:
        import signal
        signal.raise_signal(signal.SIGTERM)""",
)

#: Ends a worker as `multiprocessing.Pool` does, and would wait for a stop longer than its grace.
FORKING = """
import multiprocessing, time
from trainer_core import checkpoints
store = checkpoints()
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
worker.start()
worker.terminate()
worker.join()
print(f"worker {worker.exitcode}, stopping {store.stopping}")
"""


#: The content of step 7 is that of its manifest only when it is read for the second time.
READ_AGAIN = (
    """
import os, shutil, sys
reads = 0

def repair(name, args):
    global reads
    if name == "open" and str(args[0]).endswith("000007/state.txt"):
        reads += 1
        if reads == 2:
            os.replace(os.environ["REPAIRED"], args[0])

sys.addaudithook(repair)
"""
    + TRAINING
)

#: Asks again and again at the step of a checkpoint, as in an evaluation.
EVALUATING = """
import time
from trainer_core import checkpoints
store = checkpoints()
for call in range(100_000):
    if store.due(10 + call // 50_000):
        with store.save(10 + call // 50_000) as folder:
            (folder / f"rank-{store.rank}").touch()
        print("saved", flush=True)
    time.sleep(0.002)
"""

#: The disk is full for rank 1 from step 40 on: files can be created, and nothing can be written into them.
FULL_DISK = TRAINING.replace(
    "time.sleep(seconds)",
    """if step == 40 and store.rank == 1:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))""",
)

#: Rank 1 returns when a file appears.
RETURNING = """
import time
from pathlib import Path
from trainer_core.node import checkpoints
store = checkpoints.checkpoints()
with store.save(1) as folder:
    (folder / f"rank-{store.rank}").touch()
while store.rank and not Path("return").exists():
    time.sleep(0.005)
checkpoints.finish()
"""


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped")
    serializer.ship(folder)
    return folder


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints" / "train-0123456789" / "g-0"


@pytest.fixture
def start_store(root, monkeypatch):
    """Start one training after the other, each with settings of the option."""

    def start(path=root, **settings):
        monkeypatch.setenv(env.CHECKPOINT_PATH, str(path))
        monkeypatch.setenv(env.CHECKPOINTS, json.dumps({"grace": 0, **settings}))
        return CheckpointStore()

    yield start
    progress.reset()


@pytest.fixture
def start_rank(root, shipped, tmp_path):
    """Start the training as a process of the bare kit."""
    processes = []

    def start(
        rank=0, world=1, steps=10_000, seconds=0.005, background=False, program=TRAINING, variables=(), **settings
    ):
        log = tmp_path / f"rank-{rank}-{len(processes)}.log"
        variables = {
            **dict(variables),
            "PYTHONPATH": str(shipped),
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            env.PAYLOAD: "payload.json",
            env.CHECKPOINT_PATH: str(root),
            env.CHECKPOINTS: json.dumps({"grace": 30, **settings}),
        }
        with log.open("wb") as file:
            command = [sys.executable, "-S", "-c", program, str(steps), str(seconds), str(background)]
            process = subprocess.Popen(command, env=variables, cwd=tmp_path, stdout=file, stderr=file)
        process.log = log
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def save(store, *steps, background=False, **losses):
    for step in steps:
        with store.save(step, {"loss": losses.get(f"at_{step}", 1.0)}, background=background) as folder:
            (folder / "state.txt").write_text(f"state of {step}")


def steps_of(root):
    return [int(path.name.partition("-")[2]) for path in sorted(root.glob("step-*"))]


def leftovers(root):
    return [path.name for path in root.iterdir() if path.name.startswith((".part", ".gone"))]


def wait_for(process, text):
    deadline = time.monotonic() + 300
    while text not in process.log.read_text():
        assert process.poll() is None or text in process.log.read_text(), process.log.read_text()
        assert time.monotonic() < deadline, process.log.read_text()
        time.sleep(0.01)


def wait_for_exchange(root, step):
    """Wait until rank 0 has decided for a step."""
    deadline = time.monotonic() + 300
    while not any(json.loads(path.read_bytes())["calls"][-1][0] >= step for path in root.glob(".due-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end(process, code, seconds=300):
    assert process.wait(seconds) == code, process.log.read_text()
    return process.log.read_text()


# ---- one process -----------------------------------------------------------------------------------------------


def test_a_metric_of_a_checkpoint_has_a_name_that_can_be_printed(start_store):
    store = start_store()
    with store.save(1, metrics={"scan_\udcff.png": 0.5}) as folder:
        (folder / "state.txt").write_text("state")

    assert store.latest().metrics == {"scan_?.png": 0.5}


def test_the_next_start_finds_the_newest_checkpoint(start_store, root, capsys):
    save(start_store(), 3, 7)
    assert "trainjob: checkpoint of step 7 is complete (" in capsys.readouterr().out

    last = start_store().latest()

    assert (last.step, last.metrics, last.world_size) == (7, {"loss": 1.0}, 1)
    assert (last.path / "state.txt").read_text() == "state of 7"
    assert [each.step for each in start_store().all()] == [3, 7]
    assert start_store(root.parent / "g-1").latest() is None


def test_checkpoint_path_is_the_folder_of_the_newest(start_store, root):
    start_store()
    assert checkpoint_path() is None
    save(start_store(path=root.parent / "g-1"), 5)
    assert checkpoint_path().name == "step-000000000005"


def damage_size(path):
    (path / "state.txt").write_text("half")


def damage_content(path):
    (path / "state.txt").write_text("State of 7")


def damage_file(path):
    (path / "state.txt").unlink()


def replace_file(path):
    (path / "state.txt").rename(path / "other")
    (path / "state.txt").mkdir()


def damage_manifest(path):
    (path / "manifest.json").write_text('{"step": 7')


def remove_manifest(path):
    (path / "manifest.json").unlink()


@pytest.mark.parametrize(
    "damage", [damage_size, damage_content, damage_file, replace_file, damage_manifest, remove_manifest]
)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before_it(start_store, root, capsys, damage):
    save(start_store(), 3, 7)
    damage(root / "step-000000000007")
    left = sorted(path.name for path in (root / "step-000000000007").iterdir())

    store = start_store()

    assert store.latest().step == 3
    assert "step-000000000007 is" in capsys.readouterr().out
    save(store, 7)
    assert start_store(after="last").latest().step == 7
    (aside,) = root.glob(".damaged-step-000000000007-*")
    assert sorted(path.name for path in aside.iterdir()) == left


def test_two_saves_of_one_step_have_different_folders_and_agree_separately(start_store):
    saves = [start_store()._saves, start_store()._saves]
    parts = [saves[0].begin(3), saves[1].begin(3), saves[1].begin(3)]
    assert (len({part.name for part in parts}), len({part.task for part in parts[1:]})) == (3, 2)


def test_every_changed_bit_of_a_manifest_is_noticed(start_store, root):
    save(start_store(), 7)
    name = "step-000000000007"
    data = (root / name / "manifest.json").read_bytes()
    expected = parse_manifest(data, name)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(DamagedError):
            assert parse_manifest(bytes(changed), name) == expected, bytes(changed)


def test_a_checkpoint_with_the_name_of_another_step_is_passed_over(start_store, root):
    save(start_store(), 3, 7)
    (root / "step-000000000007").rename(root / "step-000000000009")
    assert start_store().latest().step == 3


@pytest.mark.parametrize("name", ["manifest.json", "state.txt"])
def test_a_checkpoint_that_cannot_be_read_stays_and_nothing_else_is_loaded(start_store, root, tmp_path, name):
    save(start_store(), 3, 7)
    path = root / "step-000000000007" / name
    path.rename(tmp_path / name)
    path.symlink_to(path)  # Neither absent nor readable.

    with pytest.raises(CheckpointError, match=r"step-000000000007 cannot be read, and stays: .* Too many levels"):
        start_store()
    assert steps_of(root) == [3, 7]
    (tmp_path / name).replace(path)
    assert start_store().latest().step == 7


def test_a_checkpoint_that_differs_once_is_read_again(start_store, start_rank, root, tmp_path):
    save(start_store(), 3, 7)
    state = root / "step-000000000007" / "state.txt"
    state.replace(tmp_path / "state.txt")
    state.write_text("State of 7")

    repaired = start_rank(program=READ_AGAIN, steps=7, variables={"REPAIRED": str(tmp_path / "state.txt")})

    assert "from 7\ndone" in end(repaired, 0)
    assert steps_of(root) == [3, 7]


def test_an_exception_in_save_leaves_no_checkpoint_and_reaches_the_caller(start_store, root):
    store = start_store()
    save(store, 3)
    with pytest.raises(ZeroDivisionError), store.save(7) as folder:
        (folder / "state.txt").write_text(str(1 / 0))
    with pytest.raises(StorageError, match=r"step 7 was not saved .* No space left"), store.save(7):
        raise OSError(28, "No space left on device")
    with pytest.raises(CheckpointError, match=r"step 7 was not saved .* Permission denied") as refused, store.save(7):
        raise OSError(13, "Permission denied")

    assert refused.type is CheckpointError
    assert (steps_of(root), leftovers(root)) == ([3], [])


@pytest.fixture
def small_disk(root):
    """Put the checkpoints on a disk of one MiB."""
    root.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", root], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs needs root: {mounted.stderr.decode().strip()}")
    yield
    subprocess.run(["umount", "-l", root], check=True)


def save_with_torch(folder):
    torch = pytest.importorskip("torch")
    torch.save(torch.zeros(2**20), folder / "model.pt")


@pytest.mark.parametrize(
    "write", [save_with_torch, lambda folder: (folder / "model").write_bytes(bytes(2**22))], ids=["torch", "bytes"]
)
def test_a_save_on_a_full_disk_says_so_whatever_its_library_raises(small_disk, start_store, root, write):
    store = start_store()
    save(store, 3)
    with (
        pytest.raises(StorageError, match=r"step 7 was not saved in .*: .Errno 28. the disk is full: ") as failed,
        store.save(7) as folder,
    ):
        write(folder)
    assert "\n" not in str(failed.value)
    assert (steps_of(root), leftovers(root)) == ([3], [])


def test_a_file_system_that_does_not_report_its_size_is_not_full(start_store, monkeypatch):
    store = start_store()
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result([4096, 4096, *[0] * 7, 255]))
    with pytest.raises(ZeroDivisionError), store.save(3):
        raise ZeroDivisionError


def test_what_a_killed_start_left_is_swept(start_store, root):
    save(start_store(), 3)
    for name in (".part-000000000007-0-1", ".gone-step-000000000001-0"):
        (root / name).mkdir()
        (root / name / "state.txt").touch()

    assert start_store().latest().step == 3
    assert leftovers(root) == []


def test_two_starts_that_sweep_at_once_do_not_disturb_each_other(root, monkeypatch):
    place = CheckpointFolder(str(root))
    place.prepare(0)
    left = root / ".part-7"
    left.touch()
    # Each has listed the folder before the other one deletes.
    monkeypatch.setattr(os, "listdir", lambda _: [left.name])
    for _ in range(2):
        place.sweep()
        assert not left.exists()


def test_the_newest_and_the_best_are_kept(start_store, root):
    store = start_store(keep=2, keep_best="loss")
    save(store, 1, 2, 3, 4, 5, at_2=0.1)
    assert steps_of(root) == [2, 4, 5]
    save(start_store(keep=1, keep_best="loss", mode="max"), 6, at_6=0.5)
    assert steps_of(root) == [4, 6]


def test_after_the_first_save_no_checkpoint_is_read_again_for_retention(root):
    class Listed(CheckpointFolder):
        lists = 0

        def list_complete(self):
            self.lists += 1
            return super().list_complete()

    place = Listed(str(root))
    place.prepare(0)
    retention = Retention(place, {"keep": 2})
    saved = Checkpoint(1, root, {}, 1, "job", 0, 0.0, None)
    for step in (1, 2, 3):
        retention.add(saved._replace(step=step))

    assert place.lists == 1


def test_a_complete_step_is_not_written_again(start_store, root):
    store = start_store(every_steps=1)
    save(store, 3)
    with store.save(3) as folder:
        (folder / "state.txt").write_text("another")

    assert (root / "step-000000000003" / "state.txt").read_text() == "state of 3"
    assert [store.due(step) for step in (2, 3, 4)] == [True, False, True]
    assert leftovers(root) == []


def test_a_step_before_the_newest_is_refused_and_nothing_is_deleted(start_store, root):
    save(start_store(keep=1), 7)
    store = start_store(keep=1)
    with pytest.raises(CheckpointError, match=r"step 5 is before the newest checkpoint, of step 7; begin at latest"):
        save(store, 5)
    save(store, 8)
    assert steps_of(root) == [8]


def test_a_file_with_the_name_of_the_manifest_is_refused(start_store, root):
    store = start_store()
    message = r"step 3 was not saved .*: manifest.json is a file of the checkpoint itself; write yours into a subfolder"
    with pytest.raises(CheckpointError, match=message), store.save(3) as folder:
        (folder / "manifest.json").touch()
    with store.save(3) as folder:
        (folder / "model").mkdir()
        (folder / "model" / "manifest.json").touch()
    assert (steps_of(root), leftovers(root)) == ([3], [])


def test_what_cannot_be_deleted_after_a_save_does_not_end_the_training(start_store, root, monkeypatch, capsys):
    store, rename = start_store(keep=1), Path.rename

    def refuse(path, target):
        if Path(target).name.startswith(".gone"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", refuse)
        save(store, 3, 4)
    assert "checkpoints that are kept no longer cannot be deleted: [Errno 5]" in capsys.readouterr().out
    assert steps_of(root) == [3, 4]
    save(store, 5)
    assert steps_of(root) == [5]


def test_a_place_that_breaks_is_an_error_of_checkpoints_in_every_call(start_store, root, tmp_path):
    store = start_store(every_steps=1)
    root.rename(tmp_path / "away")
    root.symlink_to(root)
    for call in (lambda: store.due(1), lambda: save(store, 1), store.all):
        with pytest.raises(CheckpointError, match=r"checkpoints cannot be kept at .* Too many levels"):
            call()


class Step:
    """An integer of another type, as NumPy has them."""

    def __index__(self):
        return 3


def test_a_step_is_an_integer_of_any_type(start_store, root):
    store = start_store(every_steps=3)
    assert store.due(Step())
    with store.save(Step()) as folder:
        (folder / "state.txt").touch()
    store.save_in_background(Step(), lambda folder: None)
    assert (steps_of(root), store.latest().step) == ([3], 3)
    for ask in (store.due, lambda step: store.save_in_background(step, lambda folder: None)):
        with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
            ask(3.0)
    with pytest.raises(TypeError, match="'str' object cannot"), store.save("3"):
        pass
    assert leftovers(root) == []


def test_an_attempt_that_was_replaced_saves_nothing(start_store, root):
    old = start_store()
    save(start_store(), 3)
    with pytest.raises(CheckpointError, match="a newer attempt of this job has started"):
        save(old, 4)
    assert steps_of(root) == [3]


@pytest.fixture
def slow_disk(monkeypatch):
    """A checkpoint is complete only after `release`; `reached` is set when one waits for that."""
    disk = SimpleNamespace(reached=threading.Event(), release=threading.Event())
    complete = CheckpointFolder.complete

    def complete_later(*args):
        disk.reached.set()
        assert disk.release.wait(300)
        return complete(*args)

    monkeypatch.setattr(CheckpointFolder, "complete", complete_later)
    yield disk
    disk.release.set()


def test_training_continues_during_a_save_in_the_background(start_store, slow_disk):
    store = start_store()
    save(store, 3, background=True)
    assert store.all() == []
    slow_disk.release.set()
    assert store.latest().step == 3
    save(store, 4, 5, background=True)
    store.flush()
    assert [each.step for each in store.all()] == [3, 4, 5]


def test_a_save_in_the_background_is_not_due_again_while_it_runs(start_store, slow_disk):
    store = start_store(every_seconds=1e-9)
    assert store.due(3)
    save(store, 3, background=True)
    assert not store.due(4)
    slow_disk.release.set()
    store.flush()
    assert store.due(5)


def test_a_save_in_the_background_writes_in_the_background(start_store):
    store, started, copied = start_store(), threading.Event(), threading.Event()

    def write(folder):
        started.set()
        assert copied.wait(300)
        (folder / "state.txt").write_text("state of 3")

    store.save_in_background(3, write, {"loss": 0.5})
    assert started.wait(300)
    assert store.all() == []
    copied.set()
    last = store.latest()
    assert (last.step, last.metrics, (last.path / "state.txt").read_text()) == (3, {"loss": 0.5}, "state of 3")
    # A complete step is not written again.
    store.save_in_background(3, lambda folder: pytest.fail(str(folder)))
    store.flush()


def test_what_fails_to_write_in_the_background_leaves_no_checkpoint(start_store, root, capsys):
    store = start_store()
    store.save_in_background(3, lambda folder: (folder / "absent" / "state.txt").touch())
    with pytest.raises(CheckpointError, match=r"checkpoint of step 3 was not saved in .* No such file"):
        store.flush()
    assert "step 3 was not saved" in capsys.readouterr().out
    save(store, 4)
    assert (steps_of(root), leftovers(root)) == ([4], [])


def test_what_a_function_raises_in_the_background_is_printed_with_its_class(start_store, root, capsys):
    store = start_store()
    store.save_in_background(3, lambda folder: {}["weights"])
    with pytest.raises(KeyError, match="weights"):
        store.flush()
    assert "trainjob: save in the background: KeyError('weights')" in capsys.readouterr().out
    assert (steps_of(root), leftovers(root)) == ([], [])


NEXT_CALLS = {
    "due": lambda store: store.due(4),
    "save": lambda store: save(store, 4),
    "latest": lambda store: store.latest(),
    "flush": lambda store: store.flush(),
}


@pytest.mark.parametrize("name", NEXT_CALLS)
def test_the_next_call_raises_what_went_wrong_in_the_background(start_store, root, monkeypatch, capsys, name):
    def fail(*_):
        raise OSError("no space left")

    store = start_store(every_steps=2)
    with monkeypatch.context() as full:
        full.setattr(CheckpointFolder, "complete", fail)
        save(store, 3, background=True)
        with pytest.raises(CheckpointError, match=r"checkpoint of step 3 was not saved in .*: no space left"):
            NEXT_CALLS[name](store)
    assert "step 3 was not saved" in capsys.readouterr().out
    save(store, 4)
    assert (steps_of(root), leftovers(root)) == ([4], [])


def test_due_by_steps_and_by_time(start_store):
    by_steps = start_store(every_steps=3)
    assert [step for step in range(1, 10) if by_steps.due(step)] == [3, 6, 9]


@pytest.mark.parametrize("background", [False, True])
def test_due_by_time_counts_from_the_start_and_then_from_the_last_save(start_store, monkeypatch, background):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    store = start_store(every_seconds=10)

    def is_due_at(*times):
        due = []
        for clock[0] in times:
            due.append(store.due(1))
        return due

    assert is_due_at(1009.9, 1010, 1012) == [False, True, True]
    save(store, 2, background=background)
    store.flush()
    assert is_due_at(1021.9, 1022) == [False, True]


def test_due_by_time_counts_from_the_end_of_a_save_that_takes_long(start_store, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    store = start_store(every_seconds=10)
    with store.save(1):
        clock[0] = 1100.0

    clock[0] = 1109.9
    assert not store.due(2)
    clock[0] = 1110.0
    assert store.due(2)


def test_each_call_of_due_is_a_sign_of_life_for_the_option_stalled(start_store, monkeypatch):
    store, steps = start_store(), []
    monkeypatch.setattr(checkpoints.beats, "beat", steps.append)
    store.due(7)
    store.due(8)
    assert steps == [7, 8]


def test_without_a_rhythm_a_save_is_never_due(start_store):
    store = start_store()
    assert not any(store.due(step) for step in range(100))


@pytest.fixture
def disk_order(monkeypatch):
    """What was synced and renamed, in order; of a folder, whether it had the manifest."""
    order, synced, renamed = [], os.fsync, Path.rename

    def fsync(handle):
        path = Path(f"/proc/self/fd/{handle}").readlink()
        order.append(("sync", path.name, (path / "manifest.json").exists() if path.is_dir() else None))
        synced(handle)

    def rename(path, target):
        order.append(("rename", Path(target).name, None))
        return renamed(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    return order


@pytest.mark.parametrize("size", [5, 2**21], ids=["small", "large"])
def test_data_is_on_the_disk_before_the_manifest_and_the_manifest_before_the_name(start_store, disk_order, size):
    """After a power failure, a folder with the name of a checkpoint has everything."""
    store = start_store()
    disk_order.clear()
    with store.save(3) as folder:
        (folder / "state.txt").write_bytes(bytes(size))
        part = folder.name

    assert disk_order == [
        ("sync", "state.txt", None),
        ("sync", "manifest.json", None),
        ("sync", part, True),
        ("rename", "step-000000000003", None),
        ("sync", "g-0", False),
    ]


def test_a_rank_says_that_it_has_written_when_its_files_are_on_the_disk(root, disk_order):
    place = CheckpointFolder(str(root))
    place.prepare(rank=1)
    part = place.create_part(".part-000000000003-0-1")
    (part / "sub").mkdir()
    (part / "sub" / "state.txt").write_text("state")

    place.store_part(part.name)

    assert disk_order == [("sync", "state.txt", None), ("sync", "sub", False)]


def test_a_disk_that_cannot_write_the_data_fails_the_save(start_store, root, monkeypatch):
    store = start_store()
    save(store, 3)
    synced = os.fsync

    def fsync(handle):
        if Path(f"/proc/self/fd/{handle}").readlink().name == "state.txt":
            raise OSError(5, "Input/output error")
        synced(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointError, match="step 4 was not saved"):
        save(store, 4)

    assert (steps_of(root), leftovers(root)) == ([3], [])


def test_what_to_load(start_store, root, tmp_path):
    save(start_store(), 3)
    other, warm = root.parent / "g-1", str(tmp_path / "warm")
    save(start_store(path=warm), 9)

    assert start_store(path=other, load="owner", load_paths=[str(root.parent)]).latest().step == 3
    assert start_store(path=other, load="file:///w", load_paths=[warm]).latest().step == 9
    one = str(Path(warm) / "step-000000000009")
    store = start_store(path=other, load="file:///w", load_paths=[one])
    assert store.latest().step == 9
    save(store, 4)
    # Once there are checkpoints of this training, they count.
    assert start_store(path=other, load="file:///w", load_paths=[warm]).latest().step == 4
    with pytest.raises(CheckpointError, match="load=file:///x: no complete checkpoint in"):
        start_store(path=root.parent / "g-2", load="file:///x", load_paths=["/x"])


@pytest.mark.parametrize(("age", "exists"), [(3700, False), (3500, True)])
def test_checkpoints_of_others_expire(start_store, root, age, exists):
    save(start_store(ttl=3600), 3)
    other = root.parents[1] / "other-0123456789" / "g-0"
    save(start_store(path=other, ttl=3600), 1)
    foreign = root.parents[1] / "data" / "set"
    foreign.mkdir(parents=True)
    os.utime(root / "start.json", (time.time() - age,) * 2)

    save(start_store(path=other, ttl=3600), 2)

    assert (root.exists(), steps_of(other), foreign.exists()) == (exists, [1, 2], True)


def test_the_time_to_live_begins_again_with_each_checkpoint(start_store, root):
    store = start_store(ttl=3600)
    os.utime(root / "start.json", (0, 0))
    save(store, 3)
    start_store(path=root.parents[1] / "other-0123456789" / "g-0", ttl=3600)

    assert steps_of(root) == [3]


def test_a_training_without_a_time_to_live_does_not_expire(start_store, root):
    save(start_store(), 3)
    os.utime(root / "start.json", (0, 0))
    start_store(path=root.parents[1] / "other-0123456789" / "g-0", ttl=3600)

    assert steps_of(root) == [3]


def test_the_clock_of_the_place_decides_what_has_expired(start_store, root, monkeypatch):
    """That of this machine is a day ahead."""
    save(start_store(ttl=60), 3)
    other = root.parents[1] / "other-0123456789" / "g-0"
    save(start_store(path=other, ttl=60), 1)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)

    assert start_store(ttl=60).latest().step == 3
    assert (steps_of(root), steps_of(other)) == ([3], [1])


def test_a_training_that_runs_does_not_expire_however_rarely_it_saves(start_rank, start_store, root):
    process = start_rank(seconds=0.05, every_steps=100_000, ttl=2)
    wait_for(process, "from 0")
    # For the check it is an hour, in which this test may wait for a processor.
    start = json.loads((root / "start.json").read_text())
    (root / "start.json").write_text(json.dumps({**start, "ttl": 3600}))
    os.utime(root / "start.json", (0, 0))
    deadline = time.monotonic() + 300
    while (root / "start.json").stat().st_mtime == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    start_store(path=root.parents[1] / "other-0123456789" / "g-0", ttl=2)

    assert process.poll() is None
    assert root.exists()


def test_sigterm_saves_and_ends_with_143(start_rank, root):
    process = start_rank(every_steps=50)
    wait_for(process, "saved 50")
    process.send_signal(signal.SIGTERM)

    log = end(process, 143)
    last = steps_of(root)[-1]

    assert "done" not in log
    assert f'"checkpoint": {last}' in log.splitlines()[-1]
    again = start_rank(steps=last + 1)
    assert f"from {last}\ndone" in end(again, 0)


def test_without_due_the_process_ends_before_the_grace_is_over(start_rank):
    process = start_rank(steps=1, seconds=60, grace=2)
    wait_for(process, "from 0")
    process.send_signal(signal.SIGTERM)

    assert "no checkpoint within the grace period" in end(process, 143)


def test_sigterm_to_a_forked_worker_ends_the_worker_and_not_the_training(start_rank):
    process = start_rank(program=FORKING, grace=3)

    assert "worker -15, stopping False" in end(process, 0)


#: Does something with the handler of SIGTERM, and asks `due` twice.
HANDLING = """
import signal, sys, threading
from trainer_core import checkpoints

def call_in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()

class Composed:
    signal_handlers = []

    def __call__(self, number, frame):
        for each in self.signal_handlers:
            each(number, frame)

def compose():
    Composed.signal_handlers = [print, signal.getsignal(signal.SIGTERM)]
    signal.signal(signal.SIGTERM, Composed())

first, then = {
    "ignored": (checkpoints, lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
    "default": (checkpoints, lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)),
    "own": (checkpoints, lambda: signal.signal(signal.SIGTERM, print)),
    "own_before": (lambda: signal.signal(signal.SIGTERM, print), checkpoints),
    "composed": (checkpoints, compose),
    "thread": (lambda: call_in_a_thread(checkpoints), lambda: call_in_a_thread(lambda: checkpoints().due(1))),
    "main_thread_later": (lambda: call_in_a_thread(checkpoints), checkpoints),
}[VARIANT]
first()
then()
print("due")
VARIANT == "thread" or checkpoints().due(2)
VARIANT == "thread" or checkpoints().due(3)
signal.raise_signal(signal.SIGTERM)
print("stopping", checkpoints().stopping)
"""


@pytest.mark.parametrize(
    ("variant", "said", "code"),
    [
        ("ignored", "its handler is now <Handlers.SIG_IGN: 1>; set it before checkpoints() is called", 0),
        ("default", "its handler is now <Handlers.SIG_DFL: 0>; set it before checkpoints() is called", -15),
        ("own", "its handler is now <built-in function print>; set it before checkpoints() is called", 0),
        ("thread", "checkpoints() was first called in a thread; call it in the main thread before", -15),
    ],
)
def test_a_handler_of_sigterm_that_saves_nothing_is_said_once(start_rank, variant, said, code):
    log = end(start_rank(program=f"VARIANT = {variant!r}{HANDLING}"), code)
    assert log.count("leads to no checkpoint") == log.count(said) == 1
    assert "stopping True" not in log


@pytest.mark.parametrize("variant", ["own_before", "composed"])
def test_a_handler_of_sigterm_beside_that_of_checkpoints_is_right(start_rank, variant):
    log = end(start_rank(program=f"VARIANT = {variant!r}{HANDLING}"), 0)
    assert "leads to no checkpoint" not in log
    assert "15 None" in log or "15 <frame" in log
    assert "stopping True" in log


def test_a_call_in_the_main_thread_after_one_in_a_thread_lets_sigterm_save(start_rank):
    assert "stopping True" in end(start_rank(program=f"VARIANT = 'main_thread_later'{HANDLING}"), 0)


# ---- through bootstrap -----------------------------------------------------------------------------------------


def stop_itself(how):
    import os
    import signal

    from trainer_core import checkpoints

    store = checkpoints()
    os.kill(os.getpid(), signal.SIGTERM)
    for step in range(1, 4):
        if how == "save" and store.due(step):
            # A job that was told to stop saves in the foreground.
            store.save_in_background(step, lambda folder: (folder / "state.txt").write_text("state"))
    return store.stopping


def train_four():
    from trainer_core import checkpoints, progress

    store = checkpoints()
    for step in range(1, 5):
        progress(step=step, total=4)
        with store.save(step, {"loss": step}) as folder:
            (folder / "state.txt").write_text("state")
    return [each.step for each in store.all()]


def train_in_the_background():
    from trainer_core import checkpoints

    with checkpoints().save(1, background=True) as folder:
        (folder / "state.txt").write_text("state")


def fail_in_the_background():
    from trainer_core import checkpoints

    checkpoints().save_in_background(1, lambda folder: (folder / "absent" / "state.txt").touch())


def save_and_fail():
    from trainer_core import checkpoints

    store = checkpoints()
    last = store.latest()
    step = last.step + 1 if last else 1
    with store.save(step) as folder:
        (folder / "state.txt").touch()
    raise RuntimeError(f"after {step}")


def fail_with_the_launch():
    import os

    raise RuntimeError(os.environ["TRAINJOB_LAUNCH"])


def save_and_return_after_stop():
    import signal

    from trainer_core import checkpoints

    with checkpoints().save(1) as folder:
        (folder / "state.txt").touch()
    signal.raise_signal(signal.SIGTERM)
    return "returned"


@pytest.fixture
def node(tmp_path, shipped):
    return Node(tmp_path, shipped)


def test_a_stopped_function_reports_its_checkpoint_and_one_that_returns_its_result(node, root):
    variables = {env.CHECKPOINT_PATH: str(root), env.CHECKPOINTS: "{}"}

    stopped = node.run(serializer.package(stop_itself, {"how": "save"}), BARE, **variables)
    assert (stopped.code, stopped.record["error"]["type"]) == (143, "trainjob.Stopped")
    assert "the checkpoint of step 1 is complete" in stopped.record["error"]["message"]

    node.log.unlink()
    returned = node.run(serializer.package(stop_itself, {"how": "return"}), BARE, **variables)
    assert (returned.code, returned.result) == (0, True)


@pytest.mark.parametrize(("after", "kept"), [("none", []), ("last", [1, 4]), ("all", [1, 3, 4])])
def test_what_a_complete_training_leaves(node, root, after, kept):
    settings = {"after": after, "keep": 2, "keep_best": "loss"}
    ended = node.run(
        serializer.package(train_four), BARE, **{env.CHECKPOINT_PATH: str(root), env.CHECKPOINTS: json.dumps(settings)}
    )

    assert (ended.result, steps_of(root)) == ([1, 3, 4], kept)


def return_late(late):
    """Return at once, or once there is a file."""
    import time
    from pathlib import Path

    from trainer_core import checkpoints

    rank = checkpoints().rank
    while rank == late and not Path("go").exists():
        time.sleep(0.005)
    return rank


@pytest.mark.parametrize("late", [0, 1])
def test_no_rank_ends_before_all_have_returned_and_the_result_lies_with_the_checkpoints(node, root, late):
    variables = {env.CHECKPOINT_PATH: str(root), env.CHECKPOINTS: "{}", "WORLD_SIZE": "2"}
    code = serializer.package(return_late, {"late": late})
    ranks = [node.start(code, BARE, RANK=str(rank), **variables) for rank in range(2)]
    while not (root.exists() and list(root.glob(".returned-*"))):
        assert ranks[1 - late].poll() is None
        time.sleep(0.005)
    assert not (root / "result.json").exists()
    (node.folder / "go").touch()

    assert [node.end(rank).code for rank in ranks] == [0, 0]
    assert json.loads((root / "result.json").read_text())["record"] == {"result": 0}


def test_a_rank_that_exits_with_zero_has_returned(node, root):
    def train():
        from trainer_core import checkpoints

        checkpoints()
        raise SystemExit(0)

    variables = {env.CHECKPOINT_PATH: str(root), env.CHECKPOINTS: "{}", "WORLD_SIZE": "2"}
    ranks = [node.start(serializer.package(train), BARE, RANK=str(rank), **variables) for rank in range(2)]
    assert [node.end(rank).code for rank in ranks] == [0, 0]


def test_a_training_that_was_told_to_stop_and_returns_leaves_its_checkpoints(node, root):
    """A suspended job begins again when it is resumed."""
    ended = node.run(
        serializer.package(save_and_return_after_stop),
        BARE,
        **{env.CHECKPOINT_PATH: str(root), env.CHECKPOINTS: json.dumps({"after": "none"})},
    )
    assert (ended.result, steps_of(root)) == ("returned", [1])


def test_the_record_of_a_node_has_its_newest_checkpoint_and_that_which_it_resumed_from(node, root):
    variables = {env.NAME: "job", env.CHECKPOINT_PATH: str(root), env.CHECKPOINTS: "{}"}
    assert node.run(serializer.package(save_and_fail), BARE, **variables).record["checkpoint"] == 1
    node.log.unlink()  # As a container that is started again.
    record = node.run(serializer.package(save_and_fail), BARE, **variables).record
    assert (record["checkpoint"], record["resumed_from"], record["error"]["message"]) == (2, 1, "after 2")


def test_a_last_save_in_the_background_that_fails_fails_the_training(node, root):
    ended = node.run(
        serializer.package(fail_in_the_background), BARE, **{env.CHECKPOINT_PATH: str(root), env.CHECKPOINTS: "{}"}
    )
    assert (ended.code, ended.error["type"]) == (1, "trainjob.CheckpointError")
    assert "checkpoint of step 1 was not saved" in ended.error["message"]


def test_a_job_ends_after_its_save_in_the_background(start_store, root, slow_disk, tmp_path, monkeypatch):
    wait = checkpoint_saves._BackgroundSave.wait

    def release_and_wait(save):
        slow_disk.release.set()
        return wait(save)

    monkeypatch.setattr(checkpoint_saves._BackgroundSave, "wait", release_and_wait)
    start_store()
    bootstrap.call(serializer.package(train_in_the_background), tmp_path / "function")
    assert steps_of(root) == [1]


# ---- several ranks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoint_has_the_files_of_all_ranks_and_they_stop_at_the_same_step(start_rank, root, background):
    # What an earlier start left must not be taken for a part of this one.
    root.mkdir(parents=True)
    (root / "start.json").write_text('{"nonce": "old", "tokens": {"1": "old"}, "resume": null}')
    (root / ".hello-1").write_text('{"nonce": "old", "token": "old"}')
    ranks = [start_rank(rank, 3, every_steps=20, background=background) for rank in range(3)]
    wait_for(ranks[1], "saved 20")
    # Only one rank hears the signal.
    ranks[2].send_signal(signal.SIGTERM)
    for rank in ranks:
        end(rank, 143)

    newest = sorted(root.glob("step-*"))[-1]
    manifest = json.loads((newest / "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["rank-0.txt", "rank-1.txt", "rank-2.txt"]
    assert {(newest / f"rank-{n}.txt").read_text() for n in range(3)} == {str(manifest["step"])}

    steps = manifest["step"] + 3
    again = [start_rank(rank, 2, steps=steps, every_steps=1, background=background) for rank in range(2)]
    assert all(f"from {manifest['step']}\n" in end(rank, 0) for rank in again)
    assert max(steps_of(root)) == steps


@pytest.mark.parametrize("background", [False, True])
def test_ranks_whose_steps_have_become_slow_stop_at_the_next_save(start_rank, root, background):
    ranks = [start_rank(rank, 2, program=SLOWING, background=background, every_steps=4) for rank in range(2)]
    logs = [end(rank, 143) for rank in ranks]

    assert "no checkpoint within the grace period" not in "".join(logs)
    # Rank 1 does not complete the save at 204 before it has told rank 0, which decides for the next save but one while
    # a save is in the background.
    assert 203 <= steps_of(root)[-1] <= (212 if background else 208)


@pytest.mark.parametrize("settings", [{"every_steps": 5}, {"every_seconds": 600}], ids=["steps", "seconds"])
def test_ranks_that_ask_many_times_at_one_step_stop_together(start_rank, root, settings):
    ranks = [start_rank(rank, 2, program=EVALUATING, grace=60, **settings) for rank in range(2)]
    wait_for_exchange(root, step=100)
    ranks[1].send_signal(signal.SIGTERM)

    logs = [end(rank, 143, seconds=100) for rank in ranks]

    assert "no checkpoint within the grace period" not in "".join(logs)
    assert steps_of(root) == [10]


@pytest.mark.parametrize("background", [False, True])
def test_a_rank_on_a_full_disk_fails_the_others_at_once_and_leaves_nothing(start_rank, root, background):
    ranks = [start_rank(rank, 2, program=FULL_DISK, every_steps=10, background=background) for rank in range(2)]

    assert "CheckpointError: the checkpoint was not saved: rank 1 failed; see its log" in end(ranks[0], 1, seconds=100)
    end(ranks[1], 120, seconds=100)  # Python's exit code for a log that cannot be written.
    # In the background, the save at 30 may still run at 40.
    assert (steps_of(root)[:2], leftovers(root)) == ([10, 20], [])


#: Rank 1 fails in the first save; the training of both ranks continues.
CONTINUING = """
from trainer_core import checkpoints
store = checkpoints()
for step in (1, 2):
    try:
        with store.save(step) as folder:
            (folder / f"rank-{store.rank}.txt").write_text(str(1 / (step - store.rank)))
    except Exception as error:
        print(step, type(error).__name__)
"""


def test_ranks_that_continue_after_a_failed_save_save_the_next_step(start_rank, root):
    ranks = [start_rank(rank, 2, program=CONTINUING) for rank in range(2)]

    assert "1 CheckpointError" in end(ranks[0], 0)
    assert "1 ZeroDivisionError" in end(ranks[1], 0)
    assert steps_of(root) == [2]


def test_checkpoints_stay_until_the_functions_of_all_ranks_have_returned(start_rank, root, tmp_path):
    ranks = [start_rank(rank, 2, program=RETURNING, after="none") for rank in range(2)]
    end(ranks[0], 0)
    assert steps_of(root) == [1]
    (tmp_path / "return").touch()
    end(ranks[1], 0)
    assert not root.exists()


def test_a_rank_that_is_behind_decides_as_rank_0_did_at_its_step(start_rank, root):
    """Rank 0 gets SIGTERM when it has decided for later steps than rank 1 has reached."""
    # Rank 1 must get to the step of rank 0 in time, however many more steps rank 0 does before it gets the signal.
    ahead = start_rank(0, 2, every_seconds=600, grace=300)
    behind = start_rank(1, 2, seconds=0.02, every_seconds=600, grace=300)
    wait_for_exchange(root, step=200)
    ahead.send_signal(signal.SIGTERM)
    end(behind, 143)
    end(ahead, 143)

    (step,) = steps_of(root)
    assert len(list(root.glob(f"step-{step:012d}/rank-*.txt"))) == 2


def test_without_the_files_of_one_rank_there_is_no_checkpoint(start_rank, root):
    ranks = [start_rank(rank, 2, seconds=0.001, every_steps=1) for rank in range(2)]
    wait_for(ranks[0], "saved 5")
    ranks[1].kill()
    ranks[1].wait()
    ranks[0].kill()
    ranks[0].wait()
    complete = steps_of(root)
    for folder in root.glob("step-*"):
        assert len(list(folder.glob("rank-*.txt"))) == 2
    again = start_rank(steps=max(complete) + 5, every_steps=1)

    assert f"from {max(complete)}\n" in end(again, 0)
    assert leftovers(root) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_end_when_one_of_them_was_started_again_alone(start_rank, root, victim):
    """As a cluster restarts the container of one rank; the others would wait for the one that is gone."""
    ranks = [start_rank(rank, 2, every_steps=5) for rank in range(2)]
    wait_for(ranks[0], "saved 5")
    ranks[victim].kill()
    ranks[victim].wait()
    again = start_rank(victim, 2, steps=20, every_steps=5)

    end(ranks[1 - victim], 143)
    other = start_rank(1 - victim, 2, steps=20, every_steps=5)

    assert all("done" in end(rank, 0) for rank in (again, other))
    assert leftovers(root) == []


@pytest.fixture
def announce_launch(root, monkeypatch):
    """Do what the launcher of a node does before its torchrun waits for the other nodes."""

    def announce(node):
        monkeypatch.setenv(env.CHECKPOINT_PATH, str(root))
        monkeypatch.setenv("PET_NODE_RANK", str(node))
        checkpoints.announce_launch()

    return announce


@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_waits_for_the_others_before_its_first_rank_starts_ends_those_that_wait_for_it(
    start_rank, root, announce_launch, victim
):
    ranks = [start_rank(rank, 2, every_steps=5) for rank in range(2)]
    wait_for(ranks[0], "saved 5")
    ranks[victim].kill()
    ranks[victim].wait()
    announce_launch(victim)

    end(ranks[1 - victim], 143)


def test_a_rank_that_waits_for_the_first_one_ends_when_its_node_is_started_again(start_rank, root, announce_launch):
    announce_launch(0)
    rank = start_rank(1, 2)
    while not (root / ".hello-1").exists():
        assert rank.poll() is None
        time.sleep(0.005)
    announce_launch(1)
    announce_launch(0)

    end(rank, 143)


def test_a_rank_whose_peer_was_started_again_before_it_calls_checkpoints_ends(start_rank, announce_launch, root):
    """Its function imported for minutes: the new node 0 waits in the rendezvous, and will not call checkpoints()."""
    for node in (1, 0):
        announce_launch(node)
    before = checkpoint_ranks.read_launch(checkpoints.open_place(str(root)))
    announce_launch(0)

    end(start_rank(1, 2, variables={env.LAUNCH: before}), 143)


def test_other_ranks_remember_the_last_launch_before_their_function_is_called(node, root, announce_launch):
    announce_launch(0)
    variables = {"RANK": "1", "WORLD_SIZE": "2", env.CHECKPOINT_PATH: str(root)}
    ended = node.run(serializer.package(fail_with_the_launch), BARE, **variables)
    assert ended.error["message"] == checkpoint_ranks.read_launch(checkpoints.open_place(str(root)))
    assert not ended.error["message"].endswith("None")


def test_nodes_that_are_launched_for_a_new_attempt_do_not_end_each_other(start_rank, announce_launch):
    for _ in range(2):
        for node in (1, 0):
            announce_launch(node)
        ranks = [start_rank(rank, 2, steps=7, every_steps=5) for rank in range(2)]
        assert all("done" in end(rank, 0) for rank in ranks)


def test_a_start_waits_for_the_one_before_it_that_was_told_to_stop(start_rank, root):
    """As a cluster replaces a pod while its process still saves."""
    first = start_rank(seconds=1, every_steps=100)
    wait_for(first, "from 0")
    first.send_signal(signal.SIGTERM)
    while not list(root.glob(".stop-*")):
        assert first.poll() is None
        time.sleep(0.005)
    second = start_rank(steps=2, overlaps=True)

    end(first, 143)
    assert f"from {steps_of(root)[-1]}\n" in end(second, 0)


def test_a_start_does_not_wait_where_the_one_before_it_has_ended(start_rank, root):
    """As on one machine, whatever marks the one before it has left."""
    first = start_rank(seconds=60, grace=600)
    wait_for(first, "from 0")
    first.send_signal(signal.SIGTERM)
    while not list(root.glob(".stop-*")):
        time.sleep(0.005)
    first.kill()
    first.wait()

    # Its grace is longer than this waits.
    assert "from 0\ndone" in end(start_rank(steps=1, grace=600), 0)


# ---- the kit ---------------------------------------------------------------------------------------------------


def test_the_programs_travel_without_comments_and_types_and_the_kit_is_small():
    command = argv_payload.render_argv(code_of_nothing(), launch="python")
    sent, written = argv_payload._read_node_kit(), serializer.shipped_files()

    # Base64 has four characters for three bytes.
    assert sum(map(len, command[4:])) * 3 / 4 < 41_000
    for path, text in sent.items():
        assert describe(text) == describe(written[path]), path
        # Cut and not written again: Python 3.12 writes f-strings that Python 3.11 cannot read.
        assert (text.rstrip().count("\n"), "#:" in text) == (written[path].rstrip().count("\n"), False), path


def code_of_nothing():
    from trainer_core.model.request import Code

    return Code.model_validate(serializer.package(leave))


def leave():
    return None


def describe(text):
    """Return the nodes of a program without those of docstrings and of the types of functions and attributes."""

    class Untyped(ast.NodeTransformer):
        def visit_AnnAssign(self, node):
            is_cut = isinstance(node.target, ast.Attribute) and node.value
            return ast.Assign([node.target], node.value) if is_cut else node

    tree = Untyped().visit(ast.parse(text))
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [
                each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
            node.body = node.body or [ast.Pass()]
    return ast.dump(tree)
