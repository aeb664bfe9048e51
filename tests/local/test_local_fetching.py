"""Initializers of local and debug jobs: data in S3 is available when training starts, and failures are diagnosed."""

from __future__ import annotations

import sys
import threading

import pytest
from local_jobs import PATIENCE, supervisor_of, wait_until_dead
from s3_storage import faults, serving, static
from s3_storage.faults import Fault

from trainer_core import (
    BackendUnavailableError,
    Category,
    CustomTrainer,
    DataCacheInitializer,
    GridSearch,
    Initializer,
    Name,
    S3DatasetInitializer,
    S3ModelInitializer,
    SecretRef,
    TrainJobTemplate,
    TrialConfig,
    UnsupportedError,
    VolumeModelInitializer,
)
from trainer_core.model.request import TrainJobRequest
from trainer_core.testing.case import wait_until_suspended

KEYS = {"access_key_id": "AKIAMADEUP", "secret_access_key": "a-secret-key"}
REFERENCES = {name: SecretRef("minio", name) for name in KEYS}


@pytest.fixture
def storage(tmp_path):
    """S3 storage with a dataset and a model. Tests add failures to `faults`."""
    for name in ("data/a.csv", "data/notes.txt", "best/model.safetensors", "best/model.bin"):
        path = tmp_path / "served" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    proxy = faults.Proxy("")
    with serving.served(static.app(tmp_path / "served")) as proxy.upstream, serving.served(proxy.app()) as proxy.url:
        yield proxy


@pytest.fixture
def initializer(storage):
    """Builds an initializer of the dataset: ``initializer(**fields)``."""

    def initializer(**fields):
        given = {"endpoint": storage.url, **KEYS, **fields}
        return Initializer(dataset=S3DatasetInitializer("s3://any/data", **given))

    return initializer


def reads_all():
    from trainer_core import dataset_path, model_path

    folders = {"dataset": dataset_path(), "model": model_path()}
    return {role: sorted(path.name for path in folder.rglob("*")) for role, folder in folders.items()}


def returns_variables_with(text):
    import os

    return [value for value in os.environ.values() if text in value]


def wait_for_diagnosis(client, ref):
    """Wait for a job that fails, and return its diagnosis."""
    outcome = client.wait(ref, timeout=PATIENCE)
    assert outcome.diagnosis is not None
    return outcome.diagnosis


def test_training_reads_a_dataset_and_a_model_from_s3(client, ask, initializer, storage):
    model = S3ModelInitializer("s3://any/best", endpoint=storage.url, **KEYS)
    fetch = Initializer(dataset=initializer(ignore_patterns=["*.txt"]).dataset, model=model)
    outcome = client.wait(client.submit(ask(reads_all, initializer=fetch)), timeout=PATIENCE)
    assert outcome.result == {"dataset": ["a.csv"], "model": ["model.safetensors"]}
    assert set(outcome.artifacts) == {"dataset", "model"}


def test_a_second_job_uses_the_data_that_the_first_one_fetched(client, ask, initializer, storage):
    for name in ("first", "second"):
        assert client.wait(client.submit(ask(reads_all, name=name, initializer=initializer()))).succeeded
    assert storage.gets("data/a.csv") == 1


def counts_files(rate):
    from trainer_core import dataset_path

    return {"loss": rate * len(list(dataset_path().iterdir()))}


def test_the_trials_of_a_search_fetch_their_data_once(client, initializer, storage, monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(f"TRAINJOB_INITIALIZE_DATASET_{name.upper()}", value)
    template = TrainJobTemplate(CustomTrainer(counts_files), "python", initializer(**REFERENCES))
    space, config = {"rate": [1.0, 2.0, 3.0]}, TrialConfig(3, 2)
    name = client.optimize(template, search_space=space, trial_config=config, algorithm=GridSearch())
    assert [trial.value for trial in client.wait_for_search(name, timeout=PATIENCE).trials] == [2.0, 4.0, 6.0]
    assert storage.gets("data/a.csv") == 1


@pytest.mark.parametrize("keys", [KEYS, REFERENCES], ids=["text", "reference"])
def test_a_secret_is_visible_to_the_initializer_only(client, ask, initializer, storage, home, keys, monkeypatch):
    secret = KEYS["secret_access_key"]
    for name, value in KEYS.items() if keys is REFERENCES else ():
        monkeypatch.setenv(f"TRAINJOB_INITIALIZE_DATASET_{name.upper()}", value)
    # Not the whole secret: the arguments of a function are written into files.
    asked = ask(returns_variables_with, {"text": secret[2:]}, initializer=initializer(**keys))
    outcome = client.wait(client.submit(asked), timeout=PATIENCE)
    assert outcome.succeeded, outcome.diagnosis
    assert wait_until_dead([supervisor_of(home, asked.context.name)])  # It deletes files at its end.
    signed = [headers["Authorization"] for _, _, headers in storage.seen if "Authorization" in headers]
    assert {KEYS["access_key_id"] in text for text in signed} == {True}
    assert [text for text in outcome.result if secret in text] == []
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_a_resumed_job_still_has_its_secrets(client, ask, initializer, storage):
    at, until = threading.Event(), threading.Event()
    storage.faults.append(Fault(faults.held(at, until), "data/a.csv", 1))
    ref = client.submit(ask(reads_all, initializer=initializer()))
    assert at.wait(PATIENCE)
    client.suspend(ref.name)
    wait_until_suspended(client, ref.name)
    until.set()
    client.resume(ref.name)
    assert client.wait(ref, timeout=PATIENCE).succeeded


def test_data_that_changes_during_the_fetch_is_a_retryable_failure(client, ask, initializer, storage):
    storage.faults.append(Fault(faults.says(412, "PreconditionFailed"), "data/a.csv"))
    why = wait_for_diagnosis(client, client.submit(ask(reads_all, initializer=initializer())))
    assert (why.category, why.step, why.retryable) == (Category.INITIALIZER, "dataset-initializer", True)
    assert why.reason.startswith("dataset: s3://any/data/a.csv: the object changed while it was fetched")


def test_denied_access_is_not_retryable(client, ask, initializer, storage):
    storage.faults.append(Fault(faults.says(403, "AccessDenied")))
    why = wait_for_diagnosis(client, client.submit(ask(reads_all, initializer=initializer())))
    assert (why.category, why.retryable) == (Category.INITIALIZER, False)
    assert "the credentials may not read it" in why.reason


def test_the_progress_of_a_fetch_is_logged_while_it_runs(client, ask, initializer, storage):
    at, until = threading.Event(), threading.Event()
    storage.faults.append(Fault(faults.held(at, until), "data/notes.txt", 1))
    ref = client.submit(ask(reads_all, initializer=initializer()))
    assert at.wait(PATIENCE)
    log = client.get_job_logs(ref.name, step="dataset-initializer", follow=True)
    assert next(log).startswith("dataset: ")
    until.set()
    assert client.wait(ref, timeout=PATIENCE).succeeded


@pytest.mark.parametrize(
    ("fetch", "message"),
    [
        (
            {"dataset": DataCacheInitializer("cache://a/b", metadata_loc="s3://m/x", num_data_nodes=2)},
            "initializer.dataset: cache:// is not supported .*: the data cache is a feature of Kubeflow Trainer",
        ),
        (
            {"model": VolumeModelInitializer("pvc://claim/best")},
            "initializer.model: pvc:// is not supported .*: it is a PersistentVolumeClaim",
        ),
        (
            {"dataset": S3DatasetInitializer("s3://a/b", access_key_id=SecretRef("s3", "key"))},
            "initializer.dataset.access_key_id refers to the Secret 's3', .* TRAINJOB_INITIALIZE_DATASET_ACCESS_KEY_ID",
        ),
    ],
    ids=["cache", "volume claim", "secret reference without a value"],
)
def test_sources_that_need_a_cluster_are_refused_in_one_line(client, fetch, message):
    with pytest.raises(UnsupportedError, match=message) as refused:
        client.initialize(Initializer(**fetch), [Name("job")])
    assert len(str(refused.value).splitlines()) == 1
    assert client.list_jobs() == []


def test_an_unsupported_scheme_is_refused_with_the_supported_ones(client, ask):
    data = {**ask().to_dict(), "initializer": {"dataset": {"storage_uri": "gs://bucket/x"}}}
    with pytest.raises(
        UnsupportedError, match=r"gs:// is not supported on this backend; use one of file://, hf://, s3://"
    ):
        client.submit(TrainJobRequest.parse(data))


def test_a_missing_extra_is_named_before_anything_is_created(client, ask, initializer, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(BackendUnavailableError, match=r"pip install -e '\.\[s3\]' in a clone") as refused:
        client.submit(ask(reads_all, initializer=initializer()))
    assert not refused.value.transient
    assert client.list_jobs() == []


def test_the_debug_backend_fetches_in_this_process(initializer, storage):
    from trainer_core import CustomTrainer, DebugBackendConfig, TrainerClient

    client = TrainerClient(DebugBackendConfig())
    fetch = Initializer(dataset=initializer().dataset)
    name = client.train(runtime="python", trainer=CustomTrainer(func=counts), initializer=fetch)
    assert client.wait(name).result == 2


def counts():
    from trainer_core import dataset_path

    return len(list(dataset_path().iterdir()))
