"""Our initializer image, as a cluster runs it: the variables of Trainer's own, a volume, no root."""

from __future__ import annotations

import os
import time

import built_image
import pytest
from fake_hub import Hub, held

from trainer_core.inside import contract

pytestmark = [
    pytest.mark.timeout(600),  # Whoever comes first builds the image.
    # The docker library leaves the sockets of streams to the garbage collector.
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
    """As clusters hand out volumes: the pod's user may write to it."""
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def start(engine, image, hub, volume):
    started = []

    def start(uri="hf://org/data", **env):
        given = {"STORAGE_URI": uri, "HF_ENDPOINT": hub.endpoint, "ACCESS_TOKEN": "hf_reader", **env}
        mounts = {str(volume): {"bind": "/workspace", "mode": "rw"}}
        container = engine.containers.run(
            image,
            environment=given,
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


def ended(container):
    code = container.wait(timeout=120)["StatusCode"]
    return code, container.logs().decode()


def test_it_fetches_into_the_volume_what_everybody_may_read(start, volume):
    code, log = ended(start(IGNORE_PATTERNS="*.txt"))

    assert code == 0, log
    found = {str(p.relative_to(volume / "dataset")): p for p in (volume / "dataset").rglob("*.*")}
    assert {path: file.read_bytes() for path, file in found.items()} == {
        path: content for path, content in FILES.items() if path.endswith(".csv")
    }
    assert {file.stat().st_mode & 0o444 for file in found.values()} == {0o444}
    assert "dataset: 0.0 MB in 2 files" in log


@pytest.mark.parametrize("prefix", ["", "AWS_"], ids=["given keys", "keys that AWS's libraries find"])
def test_it_fetches_from_s3(start, moto, bucket, volume, prefix):
    bucket("data/deep/a.csv", b"1,2")
    keys = {f"{prefix}ACCESS_KEY_ID": "a", f"{prefix}SECRET_ACCESS_KEY": "b"}

    code, log = ended(start(f"s3://{bucket.name}/data", ENDPOINT=moto[0], **keys))

    assert code == 0, log
    assert (volume / "dataset" / "deep" / "a.csv").read_bytes() == b"1,2"


def test_it_is_not_root(start, volume):
    ended(start())

    assert (volume / "dataset").stat().st_uid == 1000


def test_a_pod_that_runs_again_finds_what_is_there(start, hub):
    ended(start())
    before = len(hub.asked("/resolve/"))

    code, log = ended(start())

    assert (code, len(hub.asked("/resolve/"))) == (0, before)
    assert "found in /workspace/dataset" in log


@pytest.mark.parametrize(
    ("env", "exit_code", "reason"),
    [
        ({"ACCESS_TOKEN": "hf_wrong"}, 1, "refuses the token (401)"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, contract.TRY_AGAIN, "could not be read"),
        ({"uri": "cache://schema/table"}, 1, "cache:// cannot be fetched here"),
    ],
)
def test_a_failure_ends_with_one_line_and_a_code_that_says_whether_to_try_again(start, env, exit_code, reason):
    code, log = ended(start(**env))

    assert code == exit_code
    assert reason in log.splitlines()[-1]
    assert "hf_wrong" not in log


def test_it_ends_at_once_when_the_pod_is_deleted(start, hub):
    pause = held("train.csv", after=2)
    hub.faults.append(pause)
    container = start()
    assert pause.reached.wait(120)
    begin = time.monotonic()

    container.stop(timeout=60)

    assert container.wait(timeout=60)["StatusCode"] == 143
    assert time.monotonic() - begin < 55
