"""Large projects: their files are an object at a place, stored once and fetched once by each machine."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from s3_storage import serving
from s3_storage.memory import MemoryStorage

from trainer_core import CustomTrainer, KubernetesBackendConfig, LocalProcessBackendConfig
from trainer_core.backends.debug import DebugBackend
from trainer_core.base.errors import BackendUnavailableError, UnsupportedError
from trainer_core.cli import main
from trainer_core.definition.request_builder import build_request
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, diagnose
from trainer_core.node import load_function, project_fetch, s3_client
from trainer_core.packaging import argv_payload, code_location
from trainer_core.packaging.project import read_files

NODE = """
import json, sys
from trainer_core.node import load_function
print(load_function.unpack_project(json.loads(sys.argv[1]), sys.argv[2]))
"""


@pytest.fixture
def build(tmp_path):
    """Build a request whose project has so many bytes that do not compress."""

    def build(size=1_000_000, **fields):
        root = tmp_path / "project"
        root.mkdir(exist_ok=True)
        (root / "train.py").write_text("def main(): pass\n")
        (root / "noise.bin").write_bytes(os.urandom(size))
        return build_request(backend=DebugBackend, trainer=CustomTrainer("train:main", code=root, **fields))

    return build


@pytest.fixture
def storage(monkeypatch, tmp_path):
    """Storage that this process, and those that it starts, have the credentials of."""
    storage = MemoryStorage()
    variables = {"AWS_ACCESS_KEY_ID": "made-up", "AWS_SECRET_ACCESS_KEY": "a-secret", "TMPDIR": str(tmp_path)}
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(s3_client, "_FIRST_DELAY", 0.001)
    with serving.served(storage.app()) as url:
        for name, value in {**variables, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        yield storage


def no_space_left(*_):
    raise OSError(28, "No space left on device")


def prepare(request, place="s3://bucket/team/code"):
    resolved = code_location.resolve(request, place, ("file",))
    code_location.store(resolved)
    return code_location.remove_stored(resolved)


def unpack(request, folder):
    folder.mkdir(mode=0o700, exist_ok=True)
    return Path(load_function.unpack_project(request.project.model_dump(), str(folder)))


def test_small_files_travel_in_the_arguments_and_large_ones_through_the_place(build):
    small, large = build(290_000), build(310_000)
    assert code_location.resolve(small, "s3://bucket/code") == small
    assert code_location.resolve(large, None) == large
    resolved = code_location.resolve(large, "s3://bucket/code/")
    assert resolved.project.uri == f"s3://bucket/code/{large.project.digest}.json.zlib"
    assert code_location.resolve(resolved, "s3://moved/code") == code_location.resolve(resolved, None) == resolved
    assert resolved.fingerprint() == large.fingerprint()


def test_the_place_of_the_trainer_comes_before_that_of_the_backend_and_is_not_part_of_the_work(build):
    request = build(code_uri="s3://own/code")
    assert code_location.resolve(request, "s3://default").project.uri.startswith("s3://own/code/")
    moved = request.with_fields(trainer=request.work.trainer.model_copy(update={"code_uri": "s3://other"}))
    assert moved.fingerprint() == request.fingerprint()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            None,
            r"code: 2 files have 1 MB \(the largest are noise\.bin \(1 MB\), .* carries 900 kB: give code_uri='s3://",
        ),
        ("pvc://claim/code", r"code_uri: pvc:// is not supported .* use file:// or s3://"),
    ],
)
def test_large_files_without_a_place_that_the_backend_supports_are_refused(build, place, message):
    with pytest.raises(UnsupportedError, match=message):
        code_location.resolve(build(), place, ("file",))


def test_the_arguments_of_a_large_project_have_its_uri_and_the_programs_for_its_scheme(build):
    request = build()
    for place, has_client in (("s3://bucket/code", True), ("file:///code", False)):
        argv = argv_payload.render_argv(code_location.resolve(request, place, ("file",)).work.trainer.code)
        sent = zlib.decompress(base64.b64decode("".join(argv[4:]))).decode().split("\0")
        assert ("trainer_core/node/s3_client.py" in sent) == has_client
        project = json.loads(sent[sent.index("payload.json") + 1])["project"]
        assert "archive" not in project
        assert project["uri"].startswith(place)
        assert sum(map(len, argv)) < 68_000


def test_equal_files_are_stored_once_and_fetched_once_by_a_machine(build, storage, tmp_path):
    request = build()
    first, second = prepare(request), prepare(request)
    assert (first.project.archive, first) == ("", second)
    assert [method for method, _ in storage.requests] == ["HEAD", "PUT", "HEAD"]
    arguments = [json.dumps(first.project.model_dump())]
    jobs = [tmp_path / "job-1", tmp_path / "job-2"]
    for folder in jobs:
        folder.mkdir(mode=0o700)
    started = [
        subprocess.Popen([sys.executable, "-c", NODE, *arguments, str(folder)], stdout=subprocess.PIPE, text=True)
        for folder in (jobs[0], *jobs)
    ]
    folders = [Path(process.communicate(timeout=300)[0].strip()) for process in started]
    assert len(set(folders)) == 2
    for folder in folders:
        assert {each.name: each.read_bytes() for each in folder.iterdir()} == read_files(request.project.model_dump())
    assert [method for method, _ in storage.requests].count("GET") == 1
    assert list(storage.objects) == [f"bucket/team/code/{request.project.digest}.json.zlib"]


def test_a_recorded_request_without_its_files_stores_nothing(build, storage):
    recorded = prepare(build())
    storage.objects.clear()
    code_location.store(recorded)
    assert storage.objects == {}


def test_a_damaged_copy_on_the_machine_is_fetched_again_even_if_it_cannot_be_replaced(
    build, storage, tmp_path, monkeypatch
):
    request = prepare(build())
    unpack(request, tmp_path / "job-1")
    (kept,) = (tmp_path / f"trainjob-code-{os.geteuid()}").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    monkeypatch.setattr(Path, "replace", no_space_left)
    assert (unpack(request, tmp_path / "job-2") / "train.py").exists()
    assert [method for method, _ in storage.requests].count("GET") == 2


def test_a_shared_folder_that_another_user_controls_is_neither_read_nor_written(build, storage, tmp_path):
    request = prepare(build())
    (content,) = storage.objects.values()
    planted = tmp_path / "elsewhere" / request.project.digest
    planted.parent.mkdir()
    planted.write_bytes(content)
    file = planted.stat().st_ino
    (tmp_path / f"trainjob-code-{os.geteuid()}").symlink_to(planted.parent)
    with ThreadPoolExecutor(4) as processes:
        folders = set(processes.map(lambda _: unpack(request, tmp_path / "job"), range(4)))
    assert len(folders) == 1
    # The processes of a job still fetch it once.
    assert [method for method, _ in storage.requests].count("GET") == 1
    assert (planted.stat().st_ino, list(planted.parent.iterdir())) == (file, [planted])


def test_a_submitter_that_may_only_write_stores_files(build, storage):
    storage.refused = {"HEAD", "GET"}
    request = build()
    for _ in range(2):
        prepare(request)
    assert len(storage.objects) == 1


def test_files_that_another_submitter_stores_at_the_same_time_are_not_overwritten(build, storage, monkeypatch):
    request = build()
    prepare(request)
    (path,) = storage.objects
    storage.objects[path] = b"by another version of zlib"
    monkeypatch.setattr(s3_client.Bucket, "find", lambda *_: None)
    prepare(request)
    assert storage.objects == {path: b"by another version of zlib"}


def test_storage_that_refuses_is_reported_before_a_job_is_created(build, storage):
    storage.refused = {"PUT"}
    with pytest.raises(
        BackendUnavailableError, match=r"code: .* s3://bucket/team/code/.*: PUT .*AccessDenied.* no job"
    ):
        prepare(build())


def test_files_that_are_missing_or_damaged_are_refused_and_stored_again_by_the_next_submit(build, storage, tmp_path):
    built = build()
    request = prepare(built)
    (path,) = storage.objects
    content = storage.objects.pop(path)
    with pytest.raises(project_fetch.FetchError, match="it does not exist; submit the job again") as missing:
        unpack(request, tmp_path / "job")
    diagnosis = diagnose(Facts([StepFacts("node-0", 1, error_type="trainjob.FetchError", error_message="gone")]))
    assert (missing.type.__module__, diagnosis.category, diagnosis.retryable) == ("trainjob", "Infrastructure", True)
    for damaged in (content[:-1], b"", content[::-1]):
        storage.objects[path] = damaged
        with pytest.raises(project_fetch.FetchError, match=f"do not match their digest.*, which replaces s3://{path}$"):
            unpack(request, tmp_path / "job")
        prepare(built)
        assert storage.objects[path] == content
    # The same files by another version of zlib.
    storage.objects[path] = other = zlib.compress(zlib.decompress(content), 1)
    prepare(built)
    assert storage.objects[path] == other
    assert sorted(each.name for each in unpack(request, tmp_path / "job").iterdir()) == ["noise.bin", "train.py"]


def test_a_folder_has_complete_files_only_and_keeps_those_that_exist(build, tmp_path, monkeypatch):
    place = tmp_path / "with space" / "code"
    request = build()
    stored = prepare(request, place.as_uri())
    (file,) = place.iterdir()
    assert file.name == f"{request.project.digest}.json.zlib"
    assert file.stat().st_mode & 0o777 == 0o644
    os.utime(file, (0, 0))
    written = file.stat().st_ino
    prepare(request, place.as_uri())
    assert (file.stat().st_ino, file.stat().st_mtime > 0) == (written, True)
    assert (unpack(stored, tmp_path / "job") / "train.py").read_text() == "def main(): pass\n"
    content = file.read_bytes()
    file.write_bytes(content[::-1])
    prepare(request, place.as_uri())
    assert file.read_bytes() == content
    file.unlink()
    # A restarted process finds what it has fetched.
    assert (unpack(stored, tmp_path / "job") / "train.py").exists()
    with pytest.raises(project_fetch.FetchError, match="cannot be fetched from file://"):
        unpack(stored, tmp_path / "other job")


@pytest.mark.parametrize(
    ("environment", "place", "reason"),
    [
        ({}, "file:///etc/hostname", "file:///etc/hostname/: File exists; correct this"),
        ({}, "file:///proc/" + "a/" * 500, "No such file or directory; correct this"),
        ({"AWS_CA_BUNDLE": "/missing.pem"}, "s3://bucket", "AWS_CA_BUNDLE is not a file with certificates: "),
        ({"AWS_CA_BUNDLE": __file__}, "s3://bucket", "AWS_CA_BUNDLE is not a file with certificates: "),
    ],
)
def test_a_place_that_cannot_be_written_is_named_in_one_short_line(build, monkeypatch, environment, place, reason):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BackendUnavailableError, match=r"^code: the files cannot be written to ") as caught:
        prepare(build(), place)
    message = str(caught.value)
    assert reason in message
    assert message.endswith("; correct this or give another code_uri; no job was created")
    assert (len(message) <= 300, message.isprintable()) == (True, True)


@pytest.mark.parametrize(
    "uri",
    [
        "s3:/bucket",
        "/folder",
        "ftp://host/x",
        "file:///a/%2e%2e/b",
        "file:///a%00b",
        "file://host/x",
        "s3://u:p@b/x",
        7,
    ],
)
@pytest.mark.parametrize(
    "give",
    [
        lambda uri: CustomTrainer("train:main", code=".", code_uri=uri),
        lambda uri: LocalProcessBackendConfig(code_uri=uri),
        lambda uri: KubernetesBackendConfig(code_uri=uri),
    ],
    ids=["trainer", "local", "kubernetes"],
)
def test_what_is_no_place_is_refused_where_it_is_given(give, uri):
    with pytest.raises(ValueError, match=r"must be s3://<bucket>/<path> or file:///<folder>.*, got ") as caught:
        give(uri)
    assert "code_uri" in str(caught.value)


def test_a_place_of_too_many_characters_is_refused():
    for uri in ("s3://b/" + "a" * 1018, "file:///" + "a/" * 600):
        with pytest.raises(ValueError, match=f"^code_uri must have at most 1024 characters, got {len(uri)}$"):
            CustomTrainer("train:main", code=".", code_uri=uri)


def test_a_place_without_code_is_refused():
    with pytest.raises(ValueError, match=r"^code_uri is the place of .*give code='path/to/project', or leave code_uri"):
        CustomTrainer("train:main", code_uri="s3://bucket/code")


def test_a_full_disk_leaves_no_file_and_no_job(build, tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(Path, "replace", no_space_left)
    with pytest.raises(
        BackendUnavailableError, match=r"cannot be written to file://.*No space left.*no job was created"
    ):
        prepare(build(), place.as_uri())
    assert list(place.iterdir()) == []


@pytest.fixture
def doctor(tmp_path, capsys):
    """Run `trainjob doctor` for a place of code; return its check."""

    def doctor(uri, backend="local"):
        code = main(["--backend", backend, "--home", str(tmp_path / "home"), "doctor", "--code-uri", uri, "-o", "json"])
        (check,) = [each for each in json.loads(capsys.readouterr().out)["checks"] if each["what"] == "code"]
        assert code == 0
        return check["state"], check["found"]

    return doctor


def test_doctor_writes_to_the_place_of_code_and_leaves_nothing_there(doctor, storage, tmp_path):
    assert doctor("s3://bucket/team/code") == ("ok", "s3://bucket/team/code")
    assert [method for method, _ in storage.requests] == ["HEAD", "PUT", "DELETE"]
    assert storage.objects == {}
    assert doctor(f"file://{tmp_path}/code") == ("ok", f"file://{tmp_path}/code")
    assert not (tmp_path / "code").exists()


def test_doctor_names_the_object_that_write_only_credentials_leave(doctor, storage):
    storage.refused = {"DELETE", "HEAD", "GET"}
    state, found = doctor("s3://bucket/team/code")
    (left,) = storage.objects
    assert (state, found) == (
        "ok",
        f"s3://bucket/team/code; s3://{left}, one byte, cannot be deleted by this user",
    )


def test_doctor_says_why_the_place_of_code_cannot_be_used(doctor, storage, tmp_path):
    (tmp_path / "file").touch()
    state, found = doctor(f"file://{tmp_path}/file/code")
    assert (state, found) == ("limited", f"file://{tmp_path}/file/code cannot be written: Not a directory")
    state, found = doctor("pvc://claim/code")
    assert state == "limited"
    assert found.startswith("code_uri: pvc:// is not supported on this backend")
