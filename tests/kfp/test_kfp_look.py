"""What is fetched is cached by what it is: the component look, and initialize_task."""

import re
from typing import Optional

import kfp_definitions as definitions
import pytest
from aiohttp import web
from fake_hub import Hub
from kfp import dsl
from kfp.local import config
from kfp_driver import compiled
from s3_storage import serving, static

from kfp_components.tasks import initialize_task, train_task
from kfp_components.testing import host_runner
from trainer_core import CustomTrainer
from trainer_core.fetch import schemes
from trainer_core.fetch.source import FetchError


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.csv").write_text("1,2")
    return folder


@pytest.fixture
def version(task):
    """The version of a source, as the component says it."""

    def of(uri, **inputs):
        looking = task("look", storage_uri=uri, **inputs)
        finished = looking.run()
        assert finished.returncode == 0, finished.stderr
        return looking.output("version")

    return of


def test_a_source_that_stays_the_same_has_the_same_version(version, source):
    assert version(source.as_uri()) == version(source.as_uri())


def test_a_source_that_changes_has_another_version(version, source):
    before = version(source.as_uri())
    (source / "b.csv").write_text("3,4")

    assert version(source.as_uri()) != before


def test_files_that_are_left_out_do_not_count(version, source):
    before = version(source.as_uri(), ignore_patterns=["*.tmp"])
    (source / "b.tmp").write_text("3,4")

    assert version(source.as_uri(), ignore_patterns=["*.tmp"]) == before


def test_a_new_commit_is_another_version(version, monkeypatch):
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        repository = hub.publish("team/digits", {"data.csv": b"1,2"}, kind="dataset")
        before = version("hf://team/digits"), version("hf://team/digits")
        repository.commit({"data.csv": b"3,4"})

        assert before[0] == before[1] != version("hf://team/digits")


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"storage_uri": "file:///nowhere/at/all"}, "/nowhere/at/all does not exist"),
        ({"storage_uri": "pvc://claim/dataset"}, "pvc:// cannot be fetched here"),
        ({"storage_uri": "file:///tmp", "role": "code"}, "role must be one of dataset, model"),
    ],
)
def test_an_unreadable_source_fails_in_one_line(task, inputs, reason):
    finished = task("look", **inputs).run()

    (line,) = finished.stderr.splitlines()
    assert (finished.returncode, reason in line) == (1, True)


@dsl.pipeline
def fetch(storage_uri: str) -> dict:
    fetched = initialize_task("dataset", storage_uri=storage_uri)
    reader = CustomTrainer(func=definitions.read_the_dataset)
    trained = train_task(trainer=reader, runtime="python", dataset=fetched.outputs["dataset"], wait=True)
    return trained.outputs["result"]


def test_look_is_never_cached_and_initialize_is_cached_by_the_version(tmp_path):
    tasks = compiled(fetch, tmp_path)[0]["root"]["dag"]["tasks"]
    version = tasks["initialize-dataset"]["inputs"]["parameters"]["version"]

    assert (tasks["look"]["cachingOptions"], tasks["initialize-dataset"]["cachingOptions"]) == (
        {},
        {"enableCache": True},
    )
    assert version["taskOutputParameter"] == {"outputParameterKey": "version", "producerTask": "look"}


def test_with_kfps_cache_only_a_changed_source_is_fetched(tmp_path, client, source):
    """The cache is that of KFP's local runner; its jobs are one that fetches, if any, and one that trains."""
    with host_runner(tmp_path / "runs"):
        config.LocalExecutionConfig.instance.enable_caching = True
        seen = []
        for content in ("1,2", "1,2", "3,4,5"):
            if (source / "a.csv").read_text() != content:
                (source / "a.csv").write_text(content)
            seen.append((fetch(storage_uri=source.as_uri()).output["files"]["a.csv"], len(client.list_jobs())))

    assert seen == [("1,2", 2), ("1,2", 3), ("3,4,5", 5)]


@pytest.fixture
def store(tmp_path):
    """An S3 store with an object, and the access keys of the requests it got."""
    (tmp_path / "data" / "digits").mkdir(parents=True)
    (tmp_path / "data" / "digits" / "a.csv").write_text("1,2")
    keys = set()

    @web.middleware
    async def record_key(request, handler):
        keys.update(re.findall(r"Credential=([^/]+)/", request.headers.get("Authorization", "")))
        return await handler(request)

    app = static.app(tmp_path / "data")
    app.middlewares.append(record_key)
    with serving.served(app) as url:
        yield url, keys


OF_KFP = {"KFP_STORE_ACCESS_KEY_ID": "of-kfp", "KFP_STORE_SECRET_ACCESS_KEY": "secret"}
OF_THE_TEAM = {"ACCESS_KEY_ID": "of-the-team", "SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    ("scheme", "around", "used"),
    [
        ("minio", OF_KFP, {"of-kfp"}),
        ("minio", {**OF_KFP, **OF_THE_TEAM}, {"of-the-team"}),
        ("s3", {**OF_KFP, **OF_THE_TEAM}, {"of-the-team"}),
        ("s3", OF_KFP, set()),
    ],
)
def test_only_kfps_own_store_gets_the_keys_of_kfp_where_no_others_are_given(
    version, store, monkeypatch, scheme, around, used
):
    url, keys = store
    monkeypatch.setenv("TRAINJOB_KFP_CONTAINER", "1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in around.items():
        monkeypatch.setenv(name, value)

    version(f"{scheme}://data/digits", env={"ENDPOINT": url, "REGION": ""})

    assert keys == used


def test_endpoint_and_region_may_be_pipeline_parameters_that_are_left_empty(task, store, source):
    url, _ = store
    look = task("look", storage_uri="s3://data/digits", env={"ENDPOINT": "{{$.inputs.parameters['x']}}"}, x=url)
    away = task("look", "away", storage_uri=source.as_uri(), env={"ENDPOINT": "{{$.inputs.parameters['x']}}"}, x="")

    assert (look.run().stderr, away.run().stderr) == ("", "")


def test_secrets_reach_look_by_reference(tmp_path):
    @dsl.pipeline
    def pipeline():
        secrets = {"ACCESS_TOKEN": {"name": "hugging-face", "key": "token"}}
        initialize_task("model", storage_uri="hf://a/b", secrets=secrets, backend="kubernetes")

    document, platform = compiled(pipeline, tmp_path)

    *own, secret = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-look"]["secretAsEnv"]
    assert secret["keyToEnv"] == [{"envVar": "ACCESS_TOKEN", "secretKey": "token"}]
    assert {(each["secretName"], each["optional"]) for each in own} == {("mlpipeline-minio-artifact", True)}
    given = document["root"]["dag"]["tasks"]["initialize-model"]["inputs"]["parameters"]
    assert given["secrets"]["runtimeValue"]["constant"] == {"ACCESS_TOKEN": {"name": "hugging-face", "key": "token"}}
    assert (
        document["root"]["dag"]["tasks"]["look"]["inputs"]["parameters"]["role"]["runtimeValue"]["constant"] == "model"
    )


def test_the_secret_of_a_store_may_be_a_pipeline_parameter_that_is_left_out(tmp_path, make_backend, store):
    @dsl.pipeline(name="fetch")
    def fetch(endpoint: str, secret: Optional[str] = None):  # noqa: UP045 - KFP reads it
        initialize_task("dataset", storage_uri="s3://data/digits", endpoint=endpoint, secret=secret)

    url, keys = store
    environment = {"AWS_EC2_METADATA_DISABLED": "true", "TRAINJOB_KFP_CONTAINER": "1"}
    backend, documents = make_backend(image_environment=environment), compiled(fetch, tmp_path)
    backend.objects.secrets["object-store"] = {"accesskey": "of-the-team", "secretkey": "secret"}

    with_keys = backend.run(documents, {"endpoint": url, "secret": "object-store"})
    signed = set(keys)
    keys.clear()
    without = backend.run(documents, {"endpoint": url})

    assert (with_keys.task("look").phase, without.task("look").phase) == ("Succeeded", "Succeeded"), without.explain()
    assert (signed, keys) == ({"of-the-team"}, set())
    given = with_keys.task("initialize-dataset").execution.inputs
    assert given["secret"] == "object-store"


def test_only_datasets_and_models_are_fetched():
    with pytest.raises(ValueError, match="role must be one of dataset, model"):
        initialize_task("code", storage_uri="hf://a/b")


def test_a_store_that_is_busy_is_asked_again(version, source, monkeypatch, capsys):
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "60")
    errors = [FetchError("the storage has a server error", retryable=True)]
    create = schemes.create_source

    class Busy:
        def __init__(self, settings):
            self.source = create(settings)

        def list_files(self):
            for error in errors:
                errors.remove(error)
                raise error
            return self.source.list_files()

    monkeypatch.setattr(schemes, "create_source", Busy)

    assert version(source.as_uri())
    assert errors == []


def test_a_source_that_does_not_exist_is_not_asked_for_again(task, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "3600")

    finished = task("look", storage_uri=(tmp_path / "none").as_uri()).run()

    assert finished.returncode != 0
    assert "repeated" not in finished.stderr
