"""What a checkpoint can have comes back equal from a folder and from a bucket; the rest is refused by its name."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from trainer_core.node import checkpoint_folder, env, progress
from trainer_core.node.checkpoints import CheckpointError, CheckpointStore, open_place

SCOPE = "place/train-0123456789/g-0"

NAMES = st.sampled_from(["a", "b", "ä", "x y", ".done-0", "manifest.json.damaged", "%2F?", "\xa0", "&<"])
#: A name is followed by parents of it, by itself, and by what does not exist.
TARGETS = ["a", "b", "ä/a", "./a", "../a", "../../a", "b/../a", "b/../../a", ".", "..", "/etc/hostname", "{part}/a"]
TARGETS += ["{part}", "{part}/b/../ä", "../{name}/a", "../../{name}/b/a", "missing", "a/", "a/.", "b/b", "b//b/"]
MODES = st.sampled_from([0o600, 0o640, 0o755, 0o444, 0o4711, 0o777])
NODES = st.recursive(
    st.one_of(
        st.tuples(st.just("file"), MODES, st.sampled_from([b"", b"weights", bytes(300)])),
        st.tuples(st.just("link"), st.sampled_from(TARGETS)),
        st.tuples(st.just("folder"), MODES, st.just({})),
    ),
    lambda nodes: st.tuples(st.just("folder"), MODES, st.dictionaries(NAMES, nodes, max_size=4)),
    max_leaves=8,
)
TREES = st.dictionaries(NAMES, NODES, max_size=5)


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path, moto):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": moto[0],
        "AWS_ACCESS_KEY_ID": "AKIAMADEUP",
        "AWS_SECRET_ACCESS_KEY": "a-secret-key",
        "TMPDIR": str(tmp_path),
        env.CHECKPOINTS: json.dumps({"grace": 0}),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)
    yield monkeypatch
    progress.reset()


@pytest.fixture(params=["folder", "bucket"])
def start_store(request, machine, tmp_path, bucket):
    """Start one training after the other at one place."""
    place = {"folder": str(tmp_path / "checkpoints"), "bucket": f"s3://{bucket.name}"}[request.param]

    def start(scope=SCOPE):
        machine.setenv(env.CHECKPOINT_PATH, f"{place}/{scope}")
        return CheckpointStore()

    return start


def write(folder, nodes, part):
    for name, (kind, *rest) in nodes.items():
        path = folder / name
        if kind == "folder":
            path.mkdir()
            write(path, rest[1], part)
            path.chmod(rest[0])
        elif kind == "file":
            path.write_bytes(rest[1])
            path.chmod(rest[0])
        else:
            path.symlink_to(rest[0].format(part=part, name=part.name))


def read(folder):
    """Return what is below a folder; of a link, the target and what it leads to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name, mode = str(path.relative_to(folder)), path.lstat().st_mode
        if path.is_symlink():
            found[name] = str(path.readlink()), os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
        else:
            found[name] = stat.S_IFMT(mode), stat.S_IMODE(mode), path.read_bytes() if path.is_file() else b""
    found.pop("manifest.json", None)
    return found


def predict(part, elsewhere):
    """Return what comes back, and the links that are refused: those that lead nowhere, or out of the folder."""
    expected, refused = read(part), []
    part.rename(elsewhere)
    moved = read(elsewhere)
    elsewhere.rename(part)
    for name in (name for name, found in expected.items() if len(found) == 2):
        link = part / name
        _, leads_to = expected[name]
        if leads_to.startswith("..") or not link.exists():
            refused.append(name)
        elif moved[name] != expected[name] or expected[name][0].startswith("/"):
            expected[name] = os.path.relpath(part.resolve() / leads_to, link.parent.resolve()), leads_to
    return expected, refused


@given(tree=TREES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(tree={"last.pt": ("link", "{part}/a"), "a": ("file", 0o640, b"weights")})
@example(tree={"out": ("link", "/etc/hostname")})
@example(tree={"empty": ("folder", 0o555, {}), "b": ("folder", 0o700, {"up": ("link", "..")})})
def test_a_tree_comes_back_equal_or_is_refused_by_name(tree, start_store, tmp_path):
    scope = f"place/{uuid4().hex}/g-0"
    store = start_store(scope)
    outcome = refused = expected = None
    try:
        with store.save(3) as folder:
            write(folder, tree, folder)
            expected, refused = predict(folder, tmp_path / uuid4().hex)
    except CheckpointError as error:
        outcome = str(error)

    again = start_store(scope)
    found = again.latest()
    names = [name for name in refused if f"{name!r} is a link" in (outcome or "")]
    assert (bool(names), found is None) == (bool(refused), bool(refused)), outcome
    assert read(found.path if found else tmp_path / "none") == ({} if refused else expected)
    shutil.rmtree(tmp_path / "checkpoints" / scope, ignore_errors=True)
    again._place.forget_fetched()


def make_fifo(folder):
    os.mkfifo(folder / "pipe")
    return "'pipe' is a fifo, socket or device; remove it"


def make_socket(folder):
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)
    return "'socket' is a fifo, socket or device; remove it"


def make_bytes(folder):
    Path(os.fsdecode(os.fsencode(folder) + b"/scan_\xff.png")).touch()
    return r"the path 'scan_\udcff.png' has a control character, more than 700 bytes, or is not UTF-8; rename it"


def make_newline(folder):
    (folder / "a\nb").touch()
    return r"the path 'a\nb' has a control character, more than 700 bytes, or is not UTF-8; rename it"


def make_long(folder):
    (folder / "/".join(["d" * 200] * 4)).mkdir(parents=True)
    return "has a control character, more than 700 bytes, or is not UTF-8; rename it"


def make_manifest(folder):
    (folder / "manifest.json").touch()
    return "manifest.json is a file of the checkpoint itself; write yours into a subfolder"


@pytest.mark.parametrize("make", [make_fifo, make_socket, make_bytes, make_newline, make_long, make_manifest])
def test_what_a_checkpoint_cannot_have_is_refused_in_one_line_and_the_one_before_stays(start_store, make):
    store = start_store()
    with store.save(1) as folder:
        (folder / "state").write_text("1")
    with pytest.raises(CheckpointError) as raised, store.save(2) as folder:
        message = make(folder)

    assert message in str(raised.value)
    assert str(raised.value).isprintable()
    assert [each.step for each in start_store().all()] == [1]


def test_a_file_that_is_still_open_for_writing_is_refused_by_name(start_store):
    store, opened = start_store(), []

    def leave_open(folder):
        (folder / "log").mkdir()
        opened.append((folder / "log" / "events").open("w"))
        opened[0].write("not written")

    message = r"step 2 was not saved in .*: 'log/events' is still open for writing; close it before the end of the"
    store.save_in_background(2, leave_open)
    with pytest.raises(CheckpointError, match=message):
        store.flush()
    opened[0].close()
    assert start_store().latest() is None


def test_files_open_for_reading_or_deleted_do_not_matter(start_store):
    store = start_store()
    with store.save(1) as folder:
        (folder / "state").write_text("1")
        opened, deleted = (folder / "state").open(), (folder / "temporary").open("w")
        (folder / "temporary").unlink()
    opened.close()
    deleted.close()
    assert store.latest().step == 1


def test_a_checkpoint_of_an_earlier_release_is_read(start_store, monkeypatch):
    """Its manifest has the size and the CRC-32 of files, links included, and nothing else."""
    store = start_store()

    def collect(part, wait_for_others):
        tree = type(store._place).collect(store._place, part, wait_for_others)
        return {name: each[:2] for name, each in tree.items() if each.is_file}

    with monkeypatch.context() as earlier:
        earlier.setattr(store._place, "collect", collect)
        earlier.setattr(checkpoint_folder, "_VERSION", 2)
        with store.save(3) as folder:
            (folder / "model").mkdir()
            (folder / "model" / "state").write_bytes(b"weights")

    found = open_place(store.root).find_newest()
    assert ((found.path / "model" / "state").read_bytes(), found.size) == (b"weights", 7)
