"""The option Reuse: what the key of a training consists of, what is unknown, and which TrainJob is reused."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from file_times import wait_for_next_time

from trainer_core import CustomTrainer, LocalProcessBackendConfig, Reuse, TrainerClient
from trainer_core.backends.local import local_versions
from trainer_core.backends.local.runtimes import LocalRuntime
from trainer_core.client import reuse as lookup, trainer_client
from trainer_core.definition.initializers import initializer_from_dict
from trainer_core.fetch import local_files
from trainer_core.fetch.local_files import LocalSource
from trainer_core.fetch.source import Snapshot, SourceFile
from trainer_core.k8s.runtimes import list_further_images
from trainer_core.lifecycle import reuse
from trainer_core.model.backend_names import OWN_EXTENSIONS
from trainer_core.model.jobs import Outcome, TrainJob
from trainer_core.model.request import Owner, TrainerRequest, TrainJobRequest, Work
from trainer_core.model.runtimes import Runtime, RuntimeTrainer, TrainerType
from trainer_core.node import artifact_stamps, s3_client
from trainer_core.testing.recorder import JobRecorder, build_recording_backend, completes, fails

CODE = {"kind": "source", "text": "def train(): ...", "entry": "train", "digest": "1", "args": {"epochs": 3}}
TRAINER = {"kind": "custom", "code": CODE}
VERSIONS = {"python": "3.12.1"}
DIGEST = f"team/train@sha256:{64 * '0'}"
NOW = datetime(2026, 11, 24, 12, tzinfo=timezone.utc)

#: For each field of a request that is part of the key: another value.
CHANGES = {
    "version": None,  # There is only one.
    "runtime": {"name": "torch-distributed"},
    "trainer": {"kind": "custom", "code": {**CODE, "digest": "2"}},
    "initializer": {"dataset": {"storage_uri": "hf://team/digits"}},
    "patches": [{"trainingRuntimeSpec": {}}],
    "workspace": {"claim": "data"},
    "distributed": {"env": [{"name": "A", "value": "1"}]},
    "pytorch_job": {"restart_policy": "Never"},
    "runai": {"spec": {"image": DIGEST}},
    "partition": "emea",
}
CHANGES_OF_TRAINER = {
    "kind": {"kind": "container", "image": "a:1"},
    "code": {"code": {**CODE, "args": {"epochs": 4}}},
    "packages": {"packages": ["numpy==2.1"]},
    "pip_index_urls": {"pip_index_urls": ["https://pypi.example/simple"]},
    "image": {"image": DIGEST},
    "command": {"command": ["python"]},
    "args": {"args": ["-V"]},
    "num_nodes": {"num_nodes": 2},
    "num_proc_per_node": {"num_proc_per_node": 2},
    "resources_per_node": {"resources_per_node": {"nvidia.com/gpu": 1}},
    "env": {"env": {"SEED": "1"}},
    "config": {"config": {"epochs": 1}},
    "recipe": {"recipe": "trl"},
    "result_uri": {"result_uri": "/tmp/result.json"},
}


def ask(trainer=TRAINER, **fields):
    return TrainJobRequest.parse({"name": "job", "trainer": trainer, **fields})


def build_key(request=None, versions=VERSIONS, data=()):
    return reuse.build_key(request or ask(), versions, dict(data))


def test_each_field_of_a_request_is_part_of_the_key_or_only_organizes():
    assert CHANGES.keys() == {"version", "partition", *Work.model_fields, *OWN_EXTENSIONS} - {"extensions"}
    # Where the files of the project are does not change them.
    assert CHANGES_OF_TRAINER.keys() | {"code_uri"} == TrainerRequest.model_fields.keys()


@pytest.mark.parametrize("field", sorted(name for name, value in CHANGES.items() if value is not None))
def test_another_value_of_a_field_gives_another_key(field):
    assert build_key(ask(**{field: CHANGES[field]})) != build_key()


@pytest.mark.parametrize("field", sorted(CHANGES_OF_TRAINER))
def test_another_value_of_a_field_of_the_trainer_gives_another_key(field):
    assert build_key(ask({**TRAINER, **CHANGES_OF_TRAINER[field]})) != build_key()


def test_the_versions_and_the_content_of_the_data_are_part_of_the_key():
    keys = {
        build_key(),
        build_key(versions={"python": "3.12.2"}),
        build_key(data={"dataset": "a"}),
        build_key(data={"dataset": "b"}),
        build_key(data={"model": "b"}),
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "other"},
        {"owner": {"key": "dag/run/task"}},
        {"metadata": {"labels": {"team": "vision"}}},
        {"active_deadline_seconds": 60},
        {"stalled": {"after": 60}},
        {"reuse": {"within": 60}},
        {"checkpoints": {"keep": 1}},
        {"traceparent": f"00-{32 * 'a'}-{16 * 'b'}-01"},
        {"trainer": {**TRAINER, "resources_per_node": {}, "code_uri": "s3://code/of"}},
        {"trainer": {**TRAINER, "env": {"TOKEN": {"name": "secret", "key": "token"}}}},
        {"trainer": {**TRAINER, "code": {**CODE, "origin": "train.py:7"}}},
    ],
    ids=str,
)
def test_what_only_organizes_and_secrets_are_no_part_of_the_key(fields):
    assert build_key(ask(**{"trainer": TRAINER, **fields})) == build_key()


def test_memory_is_no_part_of_the_key_but_devices_are():
    def ask_for(**resources):
        return build_key(ask({**TRAINER, "resources_per_node": {"cpu": 1, **resources}}))

    assert ask_for(memory="8Gi") == ask_for(memory="16Gi") == ask_for()
    assert ask_for(gpu=1) != ask_for(gpu=2)


def test_the_key_is_the_same_in_any_process_whatever_the_order():
    code = (
        "import sys, json; from trainer_core import TrainJobRequest; from trainer_core.lifecycle import reuse;"
        "print(reuse.build_key(TrainJobRequest.parse(json.loads(sys.argv[1])), {'b': 1, 'a': 2}, {}))"
    )
    data = json.dumps({"trainer": dict(reversed(TRAINER.items())), "name": "job"})
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code, data], capture_output=True, text=True, env=env, check=True)
    assert other.stdout.strip() == build_key(versions={"a": 2, "b": 1})


@pytest.mark.parametrize("package", ["numpy==2.1", "torch[cpu] == 2.9.0", "a.b===1; python_version > '3'"])
def test_a_package_with_a_version_is_known(package):
    assert reuse.list_unknown(ask({**TRAINER, "packages": [package]})) == []


@pytest.mark.parametrize("package", ["numpy", "numpy>=2", "numpy==2.*", "numpy==2,>1", "git+https://example.com/a.git"])
def test_a_package_without_a_version_is_unknown(package):
    assert reuse.list_unknown(ask({**TRAINER, "packages": [package]})) == [f"package {package}: no version (==)"]


@pytest.mark.parametrize(
    ("fields", "unknown"),
    [
        ({"trainer": None}, "trainer: the TrainJob has none"),
        ({"trainer": {"kind": "builtin", "config": {"a": 1}}}, "trainer: a recipe"),
        ({"checkpoints": {"load": "owner"}}, "Checkpoints load=owner"),
        ({"workspace": {"claim": "data"}}, "Workspace claim=data"),
        ({"checkpoints": {"load": "s3://bucket/a"}}, "Checkpoints load=s3://bucket/a"),
        (
            {"patches": [{"spec": [{"volumes": [{"persistentVolumeClaim": {"claimName": "a"}}]}]}]},
            "persistentVolumeClaim",
        ),
        ({"distributed": {"env_from": [{"configMapRef": {"name": "a"}}]}}, "env_from"),
    ],
    ids=str,
)
def test_what_a_request_leaves_open_is_named(fields, unknown):
    named = reuse.list_unknown(ask(**{"trainer": TRAINER, **fields}))
    assert [each.startswith(unknown) for each in named] == [True]


@pytest.mark.parametrize("load", ["fresh", "never"])
def test_checkpoints_of_its_own_are_known(load):
    assert reuse.list_unknown(ask(checkpoints={"load": load})) == []


def test_an_image_is_known_by_its_digest_only():
    patched = ask(patches=[{"containers": [{"name": "node", "image": "side:1"}]}])
    assert reuse.check_images(ask(), DIGEST) == []
    assert reuse.check_images(ask(), "team/train:1") == ["image team/train:1: no digest (@sha256:…)"]
    assert reuse.check_images(ask(), None) == ["image of the runtime: no digest (@sha256:…)"]
    assert reuse.check_images(patched, DIGEST) == ["image side:1: no digest (@sha256:…)"]
    assert reuse.check_images(ask(), f"{DIGEST}0") != []


def test_a_volume_of_a_runtime_is_unknown():
    runtime = {"template": {"spec": {"volumes": [{"name": "a", "nfs": {"server": "b"}}, {"emptyDir": {}}]}}}
    assert reuse.check_runtime(runtime) == ["nfs of the runtime: content without a version"]
    assert reuse.check_runtime({"template": {"spec": {"volumes": [{"emptyDir": {}}]}}}) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"volumes": [{"name": "a", "iscsi": {"lun": 0}}]}, "iscsi"),
        ({"volumes": ["odd"]}, "volumes"),
        ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]}, "configMapKeyRef"),
        ({"gitSync": {"repository": "https://example.com/a.git"}}, "gitSync"),
    ],
    ids=str,
)
def test_mounts_and_settings_from_outside_are_unknown_whatever_their_kind(fields, field):
    named = f"{field} of the runtime: content without a version"
    assert named in reuse.check_runtime({"template": {"spec": fields}})


def test_a_further_container_of_a_runtime_needs_a_digest_and_an_initializer_needs_none():
    def build_part(step, *containers):
        pod = {"containers": [{"name": name, "image": f"{name}:1"} for name in containers]}
        labels = {"trainer.kubeflow.org/trainjob-ancestor-step": step}
        return {"name": step, "template": {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}}}

    parts = [build_part("dataset-initializer", "dataset-initializer"), build_part("trainer", "node", "side")]
    raw = {"spec": {"template": {"spec": {"replicatedJobs": [*parts, build_part("", "node")]}}}}
    images = list_further_images(raw)
    assert images == ["side:1", "node:1"]
    assert reuse.check_images(ask(), DIGEST, *images) == [f"image {each}: no digest (@sha256:…)" for each in images]


def build_job(status="Complete", finished=NOW - timedelta(days=1)):
    runtime = Runtime("python", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "plain", ""))
    return TrainJob("job", runtime, [], 1, NOW, status, finished=finished)


def test_a_complete_job_counts_until_the_limit():
    day = 24 * 3600
    assert reuse.is_recent(build_job(), day, NOW)
    assert not reuse.is_recent(build_job(), day - 1, NOW)
    assert not reuse.is_recent(build_job(status="Failed"), day, NOW)
    assert not reuse.is_recent(build_job(finished=None), day, NOW)


@pytest.fixture
def read_local(monkeypatch, tmp_path):
    """Reads the versions of a machine on which only the packages of a folder are installed."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path), str(tmp_path / "second")])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)

    def read(request=None, runtime_env=None):
        return local_versions.read_versions(
            request or ask(), LocalRuntime("python", "plain", 1, runtime_env or {}, False)
        )

    return read


def install(folder, name, version="1", direct_url=None):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(direct_url)


def test_the_packages_of_this_machine_are_its_versions(read_local, tmp_path):
    install(tmp_path, "a", "2")
    install(tmp_path / "second", "a", "1")
    install(tmp_path, "trainjob-workflows", "9", '{"dir_info": {"editable": true}}')
    assert read_local().parts["packages"] == {"a": "2 "}
    assert read_local().unknown == ()


@pytest.mark.parametrize("direct_url", ['{"url": "file:///a", "dir_info": {"editable": true}}', '{"dir_info": {}}'])
def test_a_package_that_is_installed_from_a_folder_is_unknown(read_local, tmp_path, direct_url):
    install(tmp_path, "mine", direct_url=direct_url)
    install(tmp_path, "other", direct_url="{}")
    install(tmp_path, "odd", direct_url="no JSON")
    assert read_local().unknown == ("package mine: it is installed from a folder, whose content has no version",)


def test_another_commit_of_a_package_with_the_same_version_gives_another_key(read_local, tmp_path):
    keys = set()
    for commit in "ab":
        install(tmp_path, "mine", direct_url=json.dumps({"url": "https://x", "vcs_info": {"commit_id": commit}}))
        keys.add(build_key(versions=read_local().parts))
        shutil.rmtree(tmp_path / "mine-1.dist-info")
    assert len(keys) == 2


def test_a_folder_that_a_pth_file_adds_is_unknown(read_local, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "mine.pth").write_text(f"# a comment\n\nimport sys\n{tmp_path}/missing\nsrc\n")
    assert read_local().unknown == ("src: a .pth file adds this folder to the modules, which has no version",)


def test_what_this_machine_imports_beside_its_packages_is_unknown(read_local):
    by_name = ask({"kind": "custom", "code": {"kind": "reference", "entry": "pkg:train"}})
    assert read_local(by_name).unknown[0].startswith("function pkg:train: it is imported")
    path = ask({**TRAINER, "env": {"PYTHONPATH": "/mine"}})
    for versions in (read_local(path), read_local(runtime_env={"PYTHONPATH": "/mine"})):
        assert versions.unknown == ("PYTHONPATH: the modules below it have no version",)


def test_the_environment_that_local_jobs_inherit_is_part_of_the_key_without_secrets_and_sessions(
    read_local, monkeypatch
):
    def read_key(request=None):
        return build_key(request, versions=read_local(request).parts)

    before = read_key()
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "tuesday")
    monkeypatch.setenv("API_TOKEN", "hf_1")
    assert read_key() == before
    fixed = ask({**TRAINER, "env": {"LEARNING_RATE": "1"}})
    of_request = read_key(fixed)
    monkeypatch.setenv("LEARNING_RATE", "0.1")
    assert read_key() != before
    assert read_key(fixed) == of_request


@pytest.fixture
def client(monkeypatch):
    """A client whose jobs are recorded, and complete with an artifact once they are observed."""
    recorder = JobRecorder()
    recorder.script(completes(lambda job: {"artifacts": job.args["artifacts"]}))
    monkeypatch.setattr(trainer_client, "backend_class", lambda name: build_recording_backend(name, recorder))
    return TrainerClient(LocalProcessBackendConfig())


def train(artifacts: dict) -> dict:
    return artifacts


def submit(client, run, within="30d", dataset=None, artifacts=None):
    """Submit the training of a run, wait for it, and return its ref."""
    request = client.build_request(
        trainer=CustomTrainer(func=train, func_args={"artifacts": artifacts or {}}),
        initializer=initializer_from_dict({"dataset": dataset}) if dataset else None,
        options=[Reuse(within)],
        owner=Owner(key=f"dag/{run}/train", slug="train", generation="1"),
    )
    ref = client.submit(request)
    client.wait(ref)
    return ref


def test_a_job_that_ended_too_long_ago_is_not_reused(client):
    first = submit(client, "monday")
    assert submit(client, "tuesday") == first
    (job,) = client.backend.recorder.jobs
    job.outcome = replace(job.outcome, finished_at="2026-01-01T00:00:00+00:00")
    assert submit(client, "wednesday") != first


def test_a_job_whose_artifact_is_missing_is_not_reused(client, tmp_path):
    model = tmp_path / "model ü.pt"
    model.write_text("weights")
    artifacts = {"model": model.as_uri(), "log": str(model), "card": "https://example.com/card"}
    first = submit(client, "monday", artifacts=artifacts)
    assert submit(client, "tuesday", artifacts=artifacts) == first
    model.unlink()
    assert submit(client, "wednesday", artifacts=artifacts) != first


def test_artifacts_whose_storage_does_not_answer_are_not_taken(client, monkeypatch, caplog):
    answer = threading.Event()
    artifacts = {"model": "s3://bucket/model"}
    first = submit(client, "monday", artifacts=artifacts, within=1e-6)
    monkeypatch.setattr(lookup, "_STORAGE_SECONDS", 0.05)
    monkeypatch.setattr(artifact_stamps, "_SECONDS", 0.05)
    monkeypatch.setattr(artifact_stamps, "_read", lambda _: answer.wait(300))
    second = submit(client, "tuesday", artifacts=artifacts)
    answer.set()
    assert second != first
    assert "cannot be used: its storage has not answered in 0 s" in caplog.text


def test_data_that_changed_trains_again(client, tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("1")
    first = submit(client, "monday", dataset=data.as_uri())
    assert submit(client, "tuesday", dataset=data.as_uri()) == first
    times = data.stat()
    data.write_text("2")
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert submit(client, "wednesday", dataset=data.as_uri()) != first


@pytest.mark.parametrize("name", ["data.csv", "folder/ü\udcff.csv"])
def test_the_same_data_at_another_place_trains_the_same(client, tmp_path, name):
    places = [tmp_path / run for run in ("a", "b", "c")]
    for place, content in zip(places, ("1", "1", "2"), strict=True):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text(content)
    first, second, third = (submit(client, each.name, dataset=each.as_uri()) for each in places)
    assert (second, third == first) == (first, False)
    (places[1] / name).rename(places[1] / "other.csv")
    assert submit(client, "d", dataset=places[1].as_uri()) != first


def copy_with_time(data, text):
    """As `cp -p`: in place."""
    data.write_text(text)
    os.utime(data, ns=(1, 1))


def replace_with_time(data, text):
    """As `rsync -t`: another file under the name."""
    copy_with_time(data.with_suffix(".new"), text)
    data.with_suffix(".new").replace(data)


@pytest.mark.parametrize("write", [copy_with_time, replace_with_time])
def test_large_data_is_the_same_only_where_nothing_has_written_it_again(client, tmp_path, monkeypatch, write):
    monkeypatch.setattr(local_files, "_HASHED_BYTES", 0)
    data = tmp_path / "data.csv"
    write(data, "1")
    first = submit(client, "monday", dataset=data.as_uri())
    assert submit(client, "tuesday", dataset=data.as_uri()) == first
    wait_for_next_time(data, tmp_path / "probe")
    write(data, "2")
    second = submit(client, "wednesday", dataset=data.as_uri())
    (tmp_path / "copy").mkdir()
    shutil.copy2(data, tmp_path / "copy")
    third = submit(client, "thursday", dataset=(tmp_path / "copy" / "data.csv").as_uri())
    assert len({first, second, third}) == 3


def test_data_that_changed_between_submit_and_fetch_is_not_that_of_the_key(client, tmp_path, caplog):
    data = tmp_path / "data.csv"
    data.write_text("1")
    submit(client, "monday", dataset=data.as_uri())
    (job,) = client.backend.recorder.jobs
    job.outcome = replace(job.outcome, fetched={"dataset": f"file:///cache/{'0' * 32}"})
    assert not submit(client, "tuesday", dataset=data.as_uri()).reused
    assert "cannot be used: its dataset was changed between submit and fetch" in caplog.text


@pytest.mark.parametrize(
    ("etags", "is_same"), [(("a", "a"), True), (("a", "b"), False), (("", ""), False)], ids=["same", "other", "none"]
)
def test_objects_with_the_same_etags_are_the_same_data_in_any_bucket(client, monkeypatch, etags, is_same):
    tags = dict(zip(("s3://b/run-1", "s3://b/run-2"), etags, strict=True))

    class Bucket:
        def __init__(self, settings):
            self.uri = settings.uri

        def list_files(self):
            return Snapshot(self.uri, (SourceFile("data.csv", 1, tags[self.uri]),), by_content=bool(tags[self.uri]))

    monkeypatch.setattr(lookup.schemes, "create_source", Bucket)
    first, second = (submit(client, uri[-1], dataset=uri) for uri in tags)
    assert (second == first) == is_same


def test_data_whose_storage_does_not_answer_trains_with_the_reason(client, tmp_path, monkeypatch, caplog):
    answer = threading.Event()
    monkeypatch.setattr(lookup, "_STORAGE_SECONDS", 0.05)
    snapshot = Snapshot("data", ())
    monkeypatch.setattr(LocalSource, "list_files", lambda _: answer.wait(300) and snapshot)
    refs = [submit(client, run, dataset=tmp_path.as_uri()) for run in ("monday", "tuesday")]
    answer.set()
    assert [ref.reused for ref in refs] == [False, False]
    assert "dataset: its storage has not answered in 0 s" in caplog.text


def test_data_that_cannot_be_read_trains_with_the_reason(client, tmp_path, monkeypatch, caplog):
    def fail(_):
        raise RuntimeError("no such bucket")

    monkeypatch.setattr(LocalSource, "list_files", fail)
    refs = [submit(client, run, dataset=tmp_path.as_uri()) for run in ("monday", "tuesday")]
    assert [ref.reused for ref in refs] == [False, False]
    assert "dataset: no such bucket" in caplog.text


def test_the_next_attempt_of_a_failed_job_has_a_key_and_trains(client):
    recorder = client.backend.recorder
    submit(client, "sunday")
    recorder.script(fails("NodeLost"), completes({}))
    request = recorder.jobs[0].request.with_fields(
        owner=Owner(key="dag/monday/train", slug="train", generation="1"), reuse_key=None
    )
    recorder.jobs[0].deleted = True
    failed = client.submit(request)
    client.wait(failed, restarts=False)
    second = client.submit(request)
    client.wait(second)
    assert (second.reused, client.get_job(second).labels) == (False, client.get_job(failed).labels)
    assert submit(client, "tuesday") == second


def test_a_person_who_retries_trains_although_another_run_trained_the_same(client):
    recorder = client.backend.recorder
    recorder.script(fails("NodeLost"), completes({}))
    failed = client.train(trainer=CustomTrainer(func=train, func_args={"artifacts": {}}), options=[Reuse("30d")])
    client.wait(failed)
    first = submit(client, "monday")
    second = client.retry(failed)
    assert (second.name, second == first) == (f"{failed}-1", False)


def test_the_ref_of_a_reused_job_changes_nothing(client):
    first = submit(client, "monday")
    second = submit(client, "tuesday")
    client.delete_job(second)
    assert client.set_job_owner(second, "Workflow", None) == {}
    assert [job.name for job in client.list_jobs()] == [first.name]
    client.delete_job(first)
    assert client.list_jobs() == []


def test_the_name_that_train_returns_gives_an_outcome_that_says_so(client):
    trainer = CustomTrainer(func=train, func_args={"artifacts": {}})
    outcomes = [client.wait(client.train(trainer=trainer, options=[Reuse("30d")])) for _ in range(2)]
    assert [outcome.reused for outcome in outcomes] == [False, True]
    assert outcomes[1].reused_from == outcomes[0].job.name
    assert Outcome.from_json(outcomes[1].to_json()).reused
    assert "reused" not in outcomes[0].to_json()


@pytest.mark.parametrize("within", [0, -1, "soon", None, True, float("nan")])
def test_a_limit_that_is_no_duration_is_refused_in_one_line(within):
    with pytest.raises(ValueError, match=r"^Reuse within: .*[^\n]*$"):
        Reuse(within)


def test_a_job_that_is_deleted_after_it_was_found_still_gives_its_outcome(client):
    first = submit(client, "monday")
    name = client.train(trainer=CustomTrainer(func=train, func_args={"artifacts": {}}), options=[Reuse("30d")])
    client.delete_job(first)
    seen: list[str] = []
    outcome = client.wait(name, on_observation=lambda each: seen.append(each.status))
    assert (name, outcome.reused_from, outcome.status, seen) == (first.name, first.name, "Complete", ["Complete"])
    assert not submit(client, "tuesday").reused


def test_the_name_that_train_returns_for_a_reused_job_deletes_and_cancels_nothing(client, caplog):
    first = submit(client, "monday")
    name = client.train(trainer=CustomTrainer(func=train, func_args={"artifacts": {}}), options=[Reuse("30d")])
    client.cancel(name)
    client.delete_job(name)
    assert [job.name for job in client.list_jobs()] == [first.name]
    assert f"TrainJob '{name}' is not deleted: it belongs to another run" in caplog.text
    client.delete_job(client.get_job_ref(name))
    assert client.list_jobs() == []


def test_an_earlier_ref_of_the_same_client_is_not_reused(client):
    first = submit(client, "monday")
    submit(client, "tuesday")
    assert not client.wait(first).reused


def test_a_missing_artifact_is_named(client, tmp_path, caplog):
    artifacts = {"model": f"file://{tmp_path}/gone"}
    for run in ("monday", "tuesday"):
        submit(client, run, artifacts=artifacts)
    assert f"trained the same, but cannot be used: file://{tmp_path}/gone is missing" in caplog.text


def test_storage_that_does_not_answer_trains(client, monkeypatch, caplog):
    def fail(self, key):
        raise s3_client.S3Error("no answer")

    monkeypatch.setattr(s3_client.Bucket, "find", fail)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    artifacts = {"model": "s3://bucket/model.pt"}
    assert [submit(client, run, artifacts=artifacts).reused for run in "ab"] == [False, False]
    assert "trained the same, but cannot be used: no answer" in caplog.text


def test_a_job_whose_artifact_another_training_overwrote_is_not_reused(client, tmp_path, caplog):
    model = tmp_path / "model.pt"
    model.write_text("of lr=0.1")
    first = submit(client, "monday", artifacts={"model": model.as_uri()})
    model.write_text("of lr=0.5")
    assert submit(client, "tuesday", artifacts={"model": model.as_uri()}) != first
    assert f"{model.as_uri()} was written again after the TrainJob had ended" in caplog.text


@pytest.mark.parametrize(("ended", "is_reused"), [(3600, True), (-3600, False)], ids=["before the end", "later"])
def test_a_job_of_an_earlier_release_is_reused_if_its_artifact_was_not_written_after_its_end(
    client, tmp_path, ended, is_reused
):
    artifacts = {"model": (tmp_path / "model.pt").as_uri()}
    (tmp_path / "model.pt").write_text("weights")
    first = submit(client, "monday", artifacts=artifacts)
    (job,) = client.backend.recorder.jobs
    at = (datetime.now(timezone.utc) + timedelta(seconds=ended)).isoformat()
    job.outcome = replace(job.outcome, stamps=None, finished_at=at)
    assert (submit(client, "tuesday", artifacts=artifacts) == first) == is_reused


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "long-training.md"


def list_ignored_in_guide():
    """The names of variables in the guide, below the line that introduces them."""
    (block,) = re.findall(r"inherited variables that do not count.*?```text\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return block.split()


def test_the_guide_lists_each_variable_that_does_not_count_by_its_whole_name():
    listed = list_ignored_in_guide()
    assert f"those that begin with\n`{local_versions.IGNORED_PREFIX}`" in GUIDE.read_text()
    assert sorted(listed) == sorted(local_versions.IGNORED)
    assert all(re.fullmatch(r"\w+", name) for name in listed)


@pytest.mark.parametrize(
    "name",
    ["PROMPT_TEMPLATE", "SYSTEM_PROMPT", "TERMS", "KFP_MODE", "XDG_CACHE_HOME", "MLFLOW_RATE", "TRAINJOB_RATE", "PS5"],
)
def test_a_variable_that_only_resembles_one_that_does_not_count_is_part_of_the_key(read_local, monkeypatch, name):
    before = build_key(versions=read_local().parts)
    monkeypatch.setenv(name, "1")
    assert build_key(versions=read_local().parts) != before


def test_no_variable_that_does_not_count_is_part_of_the_key(read_local, monkeypatch):
    before = build_key(versions=read_local().parts)
    for name in [*local_versions.IGNORED, "AIRFLOW_CTX_GIT_SHA"]:
        monkeypatch.setenv(name, "1")
    assert build_key(versions=read_local().parts) == before
