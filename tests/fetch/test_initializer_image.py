"""The initializer image as a cluster runs it: Trainer's variables, a volume, no root."""

from __future__ import annotations

import os

import built_image
import pytest
from fake_hub import Hub, held

from trainer_core.node import env as node_env

pytestmark = [
    # An image is built.
    # The docker library does not close the sockets of streams.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
FILES = {"train.csv": b"1,2\n", "deep/test.csv": b"3,4\n", "notes.txt": b"not data"}


@pytest.fixture(scope="module")
def engine():
    with built_image.engine() as client:
        yield client


@pytest.fixture(scope="module")
def image(engine):
    return built_image.built(engine, "trainjob-dataset-initializer", "deploy/initializer/Dockerfile", "dataset")


@pytest.fixture
def hub():
    with Hub() as hub:
        hub.tokens.add("hf_reader")
        hub.publish("org/data", FILES, kind="dataset", private=True, readers={"hf_reader"})
        yield hub


@pytest.fixture
def volume(tmp_path):
    """A volume that the user of the pod can write to."""
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def start(engine, image, hub, volume):
    started = []

    def start(uri="hf://org/data", **env):
        variables = {"STORAGE_URI": uri, "HF_ENDPOINT": hub.endpoint, "ACCESS_TOKEN": "hf_reader", **env}
        mounts = {str(volume): {"bind": "/workspace", "mode": "rw"}}
        container = engine.containers.run(
            image,
            environment=variables,
            volumes=mounts,
            network_mode="host",
            detach=True,
            name=f"init-{os.getpid()}-{len(started)}",
        )
        started.append(container)
        return container

    yield start
    for container in started:
        container.remove(force=True)


def wait_for_exit(container):
    code = container.wait(timeout=300)["StatusCode"]
    return code, container.logs().decode()


def test_files_in_the_volume_are_readable_by_all_users(start, volume):
    code, log = wait_for_exit(start(IGNORE_PATTERNS="*.txt"))

    assert code == 0, log
    found = {str(p.relative_to(volume / "dataset")): p for p in (volume / "dataset").rglob("*.*")}
    assert {path: file.read_bytes() for path, file in found.items()} == {
        path: content for path, content in FILES.items() if path.endswith(".csv")
    }
    assert {file.stat().st_mode & 0o444 for file in found.values()} == {0o444}
    assert "dataset: 0.0 MB in 2 files" in log


@pytest.mark.parametrize("prefix", ["", "AWS_"], ids=["given keys", "keys in the variables of AWS"])
def test_an_s3_source_is_fetched(start, moto, bucket, volume, prefix):
    bucket("data/deep/a.csv", b"1,2")
    keys = {f"{prefix}ACCESS_KEY_ID": "a", f"{prefix}SECRET_ACCESS_KEY": "b"}

    code, log = wait_for_exit(start(f"s3://{bucket.name}/data", ENDPOINT=moto[0], **keys))

    assert code == 0, log
    assert (volume / "dataset" / "deep" / "a.csv").read_bytes() == b"1,2"


def test_the_container_does_not_run_as_root(start, volume):
    wait_for_exit(start())

    assert (volume / "dataset").stat().st_uid == 1000


def test_a_second_pod_fetches_nothing(start, hub):
    wait_for_exit(start())
    before = len(hub.asked("/resolve/"))

    code, log = wait_for_exit(start())

    assert (code, len(hub.asked("/resolve/"))) == (0, before)
    assert "found in /workspace/dataset" in log


@pytest.mark.parametrize(
    ("env", "exit_code", "reason"),
    [
        ({"ACCESS_TOKEN": "hf_wrong"}, 1, "rejects the token (401)"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, node_env.TRY_AGAIN, "could not be read"),
        ({"uri": "cache://schema/table"}, 1, "cache:// cannot be fetched here"),
    ],
)
def test_a_failure_has_one_line_and_an_exit_code(start, env, exit_code, reason):
    code, log = wait_for_exit(start(**env))

    assert code == exit_code
    assert reason in log.splitlines()[-1]
    assert "hf_wrong" not in log


def test_the_container_exits_when_the_pod_is_deleted(start, hub):
    pause = held("train.csv", after=2)
    hub.faults.append(pause)
    container = start()
    assert pause.reached.wait(300)

    # While the body is held; 137 is the code of a program that does not hear the signal.
    container.stop(timeout=300)

    assert container.wait(timeout=300)["StatusCode"] == 143
