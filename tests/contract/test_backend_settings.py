"""Settings of the backends' configurations that apply to all of their jobs."""

from __future__ import annotations

import json
import os

import pytest
from s3_storage import serving
from s3_storage.memory import MemoryStorage

from trainer_core import CustomTrainer, Name, Owner, SecretRef, Stalled, Suspend
from trainer_core.backends.kubernetes_base import BaseKubernetesBackend
from trainer_core.node import env

PROGRAM = """
from pathlib import Path

def measure():
    return len(Path("noise.bin").read_bytes())
"""


@pytest.fixture
def storage(monkeypatch, tmp_path):
    """Storage whose credentials the submitter has in its environment."""
    storage = MemoryStorage()
    variables = {"AWS_ACCESS_KEY_ID": "of-submitter", "AWS_SECRET_ACCESS_KEY": "secret-of-submitter"}
    with serving.served(storage.app()) as storage.url:
        for name, value in {**variables, "AWS_ENDPOINT_URL": storage.url, "TMPDIR": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield storage


@pytest.mark.parametrize("name", ["local", "kubernetes", "training-operator", "runai"])
def test_a_large_project_goes_to_the_bucket_once_and_to_a_machine_once_without_credentials_in_the_job(
    name, cases, storage, tmp_path, add_secret
):
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(PROGRAM)
    (root / "noise.bin").write_bytes(os.urandom(1_000_000))
    (case,) = (each for each in cases if each.name == name)
    client = case.connect(tmp_path / "state", code_uri="s3://bucket/code")
    variables = {"AWS_ENDPOINT_URL": storage.url, "AWS_ACCESS_KEY_ID": "of-trainer", "TMPDIR": str(tmp_path)}
    if isinstance(client.backend, BaseKubernetesBackend):
        add_secret(client.backend.namespace, "bucket", {"key": "secret-of-trainer"})
        variables["AWS_SECRET_ACCESS_KEY"] = SecretRef("bucket", "key")
    trainer = CustomTrainer("train:measure", code=root, num_nodes=2, env=variables)
    request = client.build_request(runtime=case.runtime, trainer=trainer, owner=Owner(key="train"))
    assert "secret-of" not in json.dumps(client.render(request.with_name("job")))
    ref = client.submit(request)
    assert client.submit(request) == ref
    assert client.wait(ref).result == 1_000_000
    assert client.get_job_request(ref).fingerprint() == request.fingerprint()
    client.delete_job(ref)
    # Both nodes run on this machine.
    assert [method for method, _ in storage.requests] == ["HEAD", "PUT", "GET"]


@pytest.mark.parametrize("name", ["local", "container", "kubernetes", "training-operator", "runai"])
def test_reports_of_resources_are_switched_off_for_all_jobs_that_do_not_switch_them_on(name, cases, tmp_path):
    def render(seconds, **variables):
        client = case.connect(tmp_path / "state", resource_interval=seconds)
        trainer = CustomTrainer("train:main", env=variables, image="python:3")
        request = client.build_request(runtime=case.runtime, trainer=trainer, options=[Name("job")])
        fingerprints.add(client.backend.resolve_request(request).fingerprint())
        return json.dumps(client.render(request))

    (case,) = (each for each in cases if each.name == name)
    fingerprints = set()
    assert env.RESOURCE_INTERVAL not in render(None)
    assert env.RESOURCE_INTERVAL in render(0)
    assert "12.5" in render(12.5)
    assert "12.5" not in render(12.5, **{env.RESOURCE_INTERVAL: "3"})
    assert len(fingerprints) == 1


@pytest.mark.parametrize("name", ["local", "container", "kubernetes", "training-operator", "runai"])
def test_default_options_are_those_of_jobs_without_them_and_a_change_leaves_submitted_jobs_alone(
    name, cases, tmp_path, caplog
):
    def connect(after):
        return case.connect(tmp_path / "state", default_options=[{"Stalled": {"after": after}}])

    (case,) = (each for each in cases if each.name == name)
    client = connect("30m")
    trainer = CustomTrainer("train:main", image="python:3")
    owned = {"runtime": case.runtime, "trainer": trainer, "owner": Owner(key="nightly/1")}
    request = client.build_request(**owned, options=[Suspend()])
    assert env.STALLED in json.dumps(client.render(request.with_name("job")))
    ref = client.submit(request)
    assert client.get_job_request(ref).policy.stalled.after == 1800
    changed = connect("40m")
    assert changed.submit(request) == ref
    assert "continues as it was first submitted" not in caplog.text
    submitted = changed.get_job_request(ref)
    assert (submitted.policy.stalled.after, submitted.fingerprint()) == (1800, request.fingerprint())
    explicit = changed.build_request(**owned, options=[Suspend(), Stalled(after="1h")])
    assert explicit.fingerprint() != request.fingerprint()
    assert "3600" in json.dumps(changed.render(explicit.with_name("job")))
    client.delete_job(ref)


def looks_for_its_token():
    import os
    from pathlib import Path

    token, folder = os.environ["TOKEN"].encode(), Path(os.environ["SCANNED"])
    found = [path for path in folder.rglob("*") if path.is_file() and token in path.read_bytes()]
    raise RuntimeError(f"{len(found)} files have the token of {len(token)} characters")


@pytest.mark.parametrize("name", ["container", "kubernetes", "training-operator", "runai"])
def test_debugging_neither_prints_nor_writes_the_secrets_of_a_job(
    name, cases, tmp_path, add_secret, monkeypatch, capfd
):
    (case,) = (each for each in cases if each.name == name)
    client, here = case.connect(tmp_path / "state"), tmp_path / "here"
    here.mkdir()
    if isinstance(client.backend, BaseKubernetesBackend):
        add_secret(client.backend.namespace, "hub", {"token": "s3cr3t-of-job"})
    monkeypatch.setenv("TOKEN", "s3cr3t-of-job")
    variables = {"TOKEN": SecretRef("hub", "token"), "SCANNED": str(here)}
    trainer = CustomTrainer(looks_for_its_token, env=variables)
    ref = client.get_job_ref(client.train(runtime=case.runtime, trainer=trainer, options=[Name("job")]))
    reason = client.wait(ref).diagnosis.reason
    assert reason == "RuntimeError: 0 files have the token of 13 characters"
    monkeypatch.delenv("TOKEN")
    monkeypatch.setenv("TMPDIR", str(here))
    monkeypatch.setattr("tempfile.tempdir", None)
    result = client.debug(ref, pdb=False, env={"TOKEN": "s3cr3t-of-me"})
    assert result.outcome.diagnosis.reason == "RuntimeError: 0 files have the token of 12 characters"
    output = capfd.readouterr()
    assert "s3cr3t" not in output.out + output.err + json.dumps(result.outcome.to_dict())
    client.delete_job(ref)
