"""``hf://``: selection of files, access to repositories, resumed downloads and offline use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import huggingface_hub
import pytest
from fake_hub import Hub, cut, held, refused, spoiled
from huggingface_hub import constants

from trainer_core.fetch import schemes
from trainer_core.fetch.cache import fetch_to_cache
from trainer_core.fetch.progress import LogProgress
from trainer_core.fetch.settings import ENV_PREFIX, FetchSettings
from trainer_core.fetch.source import FetchError
from trainer_core.node import env as node_env

#: huggingface_hub writes 10 MiB at a time: a shorter download cannot be resumed.
LARGE = bytes(range(256)) * 50_000
PIECE = 10 * 2**20
FILES = {"config.json": b"{}", "deep/ü x.txt": b"text", "model.safetensors": LARGE, "pytorch_model.bin": b"old"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.tokens |= {"hf_reader", "hf_stranger"}
        yield hub
    huggingface_hub.close_session()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def fetch(cache):
    def fetch(uri, role="model", **settings):
        return fetch_to_cache(schemes.create_source(FetchSettings(role, uri, **settings)), cache, LogProgress(role))[0]

    return fetch


@pytest.fixture
def step(hub, cache, tmp_path):
    """Start the program of an initializer step as a backend does."""
    processes = []

    def step(uri, **more):
        settings = {"ROLE": "model", "STORAGE_URI": uri, "CACHE": str(cache), "TARGET": str(tmp_path / "model")}
        env = {
            **os.environ,
            "HF_HOME": str(tmp_path),
            **{ENV_PREFIX + name: text for name, text in settings.items()},
            **more,
        }
        command = [sys.executable, "-m", "trainer_core.fetch"]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield step
    for process in processes:
        process.kill()
        process.communicate()


def read_content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_all_files_of_a_dataset_are_fetched(hub, fetch):
    hub.publish("org/data", FILES, kind="dataset")

    assert read_content(fetch("hf://org/data", role="dataset")) == FILES


def test_all_pages_of_a_listing_are_read(fetch, hub):
    many = {f"part-{number}.csv": b"%d" % number for number in range(25)}
    hub.page = 10
    hub.publish("org/data", many, kind="dataset")

    assert read_content(fetch("hf://org/data", role="dataset")) == many


def test_weights_configuration_and_text_of_a_model_are_fetched(hub, fetch):
    hub.publish("org/model", FILES)

    assert set(read_content(fetch("hf://org/model"))) == {"config.json", "deep/ü x.txt", "model.safetensors"}


def test_ignored_files_are_left_out(hub, fetch):
    hub.publish("org/model", FILES)

    assert set(read_content(fetch("hf://models/org/model", ignore=("*.txt", "model.*")))) == {"config.json"}


@pytest.mark.parametrize(("path", "found"), [("pytorch_model.bin", "pytorch_model.bin"), ("deep", "deep/ü x.txt")])
def test_only_the_path_in_the_uri_is_fetched(hub, fetch, path, found):
    hub.publish("org/model", FILES)

    assert set(read_content(fetch(f"hf://org/model/{path}", ignore=("*.bin",)))) == {found}


def test_a_fetched_revision_does_not_change(hub, fetch):
    repository = hub.publish("org/model", {"config.json": b"1"})
    repository.tag("v1")
    first = repository.refs["main"]
    repository.commit({"config.json": b"2"})
    repository.commit({"config.json": b"3"}, branch="refs/pr/7")

    read = [fetch(f"hf://org/model{at}") for at in ("@v1", f"@{first}", "", "@main", "@refs/pr/7")]

    assert [(folder / "config.json").read_bytes() for folder in read] == [b"1", b"1", b"2", b"2", b"3"]
    assert len(set(read)) == 3


def test_cached_files_are_not_downloaded_again(hub, fetch):
    hub.publish("org/model", FILES)
    fetch("hf://org/model")
    before = len(hub.asked("/resolve/"))

    fetch("hf://org/model")

    assert len(hub.asked("/resolve/")) == before


def test_files_in_the_cache_of_huggingface_hub_are_not_downloaded(hub, fetch):
    hub.publish("org/model", FILES)
    huggingface_hub.snapshot_download("org/model", endpoint=hub.endpoint, cache_dir=constants.HF_HUB_CACHE)
    before = len(hub.asked("/resolve/"))

    assert (fetch("hf://org/model") / "model.safetensors").read_bytes() == LARGE
    assert len(hub.asked("/resolve/")) == before


def test_a_damaged_file_in_the_cache_of_huggingface_hub_is_downloaded_again(hub, fetch):
    hub.publish("org/model", FILES)
    cached = huggingface_hub.hf_hub_download("org/model", "config.json", endpoint=hub.endpoint)
    Path(cached).write_bytes(b"[]")

    assert (fetch("hf://org/model") / "config.json").read_bytes() == b"{}"


def test_a_token_is_sent_to_the_hub_and_to_no_other_host(hub, fetch):
    hub.publish("org/model", FILES, private=True, gated=True, readers={"hf_reader"})

    fetch("hf://org/model", access_token="hf_reader")

    assert {(seen.origin, seen.token) for seen in hub.asked("org/model")} == {("hub", "hf_reader"), ("large", None)}


def test_the_token_of_the_environment_is_used(hub, fetch, monkeypatch):
    hub.publish("org/model", FILES, private=True, readers={"hf_reader"})
    monkeypatch.setenv("HF_TOKEN", "hf_reader")

    assert (fetch("hf://org/model") / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("uri", "token", "reason"),
    [
        ("hf://org/none", None, "has no such repository, or it is private and needs an access_token; check the name"),
        ("hf://org/none", "hf_reader", "has no such repository, or the token has no access to it; check the name"),
        (
            "hf://org/private",
            None,
            "has no such repository, or it is private and needs an access_token; check the name",
        ),
        ("hf://org/private", "hf_stranger", "has no such repository, or the token has no access to it; check the name"),
        ("hf://org/open", "hf_wrong", "rejects the token (401): it is wrong or has expired; create a new one at"),
        ("hf://org/gated", None, "the repository is gated; accept its terms on its page, and pass a token"),
        (
            "hf://org/gated",
            "hf_stranger",
            "the repository is gated and the token's account has no access; request access",
        ),
        ("hf://org/disabled", None, "has disabled the repository; use another one"),
        (
            "hf://org/open@v9",
            None,
            "hf://org/open@v9: the revision does not exist; use a branch, a tag or a full commit hash",
        ),
        ("hf://org/open/nothing", None, "none of its 4 files is selected; check ignore_patterns, or name a file"),
        ("hf://org/weights", None, "of a model only *.json, *.safetensors, *.model, *.txt are fetched"),
        ("hf://datasets/org/open", None, "hf://datasets/org/open does not name a model; write hf://owner/name"),
        ("hf://org/open@", None, "does not name a model; write hf://owner/name"),
        ("hf://org/a:b", None, "'org/a:b' is not a valid name of a model; write hf://owner/name"),
        ("hf://org/evil", None, "'../evil.json' is not a path inside a folder; rename the file in the source"),
    ],
)
def test_the_error_of_a_failed_fetch_is_one_line_with_a_remedy(hub, fetch, uri, token, reason):
    hub.publish("org/open", FILES)
    hub.publish("org/private", FILES, private=True)
    hub.publish("org/gated", FILES, gated=True)
    hub.publish("org/disabled", FILES, disabled=True)
    hub.publish("org/weights", {"model.gguf": b""})
    hub.publish("org/evil", {"../evil.json": b""})

    with pytest.raises(FetchError) as caught:
        fetch(uri, access_token=token)

    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not caught.value.retryable


def test_a_broken_download_is_resumed(hub, fetch):
    hub.publish("org/model", FILES)
    hub.faults.append(cut("model.safetensors", after=PIECE + 1000))

    assert (fetch("hf://org/model") / "model.safetensors").read_bytes() == LARGE
    assert [seen.range for seen in hub.asked("model.safetensors", "GET")][-1] == f"bytes={PIECE}-"


def test_a_killed_fetch_is_resumed(hub, step, cache):
    hub.publish("org/model", FILES)
    pause = held("model.safetensors", after=PIECE + 1000)
    hub.faults.append(pause)
    killed = step("hf://org/model")
    assert pause.reached.wait(300)
    wait_for_a_part(cache)
    killed.send_signal(signal.SIGKILL)
    killed.wait(300)

    again = step("hf://org/model")

    assert again.wait(300) == 0, again.stderr.read()
    assert [seen.range for seen in hub.asked("model.safetensors", "GET")][-1] == f"bytes={PIECE}-"


def wait_for_a_part(cache):
    """Wait until the first 10 MiB of the large file are on disk."""
    end = time.monotonic() + 300
    while not any(part.stat().st_size >= PIECE for part in cache.glob(".*.part/model.safetensors")):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_requests_to_a_busy_hub_are_repeated(hub, fetch):
    hub.publish("org/model", FILES)
    hub.faults += [refused("/api/models/org/model/revision", 503), refused("resolve", 429, Retry_After="0")]

    assert (fetch("hf://org/model") / "config.json").read_bytes() == b"{}"


def test_the_request_for_the_metadata_of_a_large_file_is_repeated_too(hub, fetch):
    hub.publish("org/model", {"model.safetensors": FILES["model.safetensors"]})
    hub.faults.append(refused("resolve", 429, Retry_After="0"))

    assert (fetch("hf://org/model") / "model.safetensors").read_bytes() == FILES["model.safetensors"]


@pytest.mark.parametrize(
    ("status", "reason"), [(503, "has a server error (503)"), (429, "limits the rate of requests (429)")]
)
def test_the_error_of_a_hub_that_stays_busy_is_retryable(hub, fetch, status, reason):
    hub.publish("org/model", FILES)
    hub.faults.append(refused("/api/models/org/model/revision", status, times=99))

    with pytest.raises(FetchError) as caught:
        fetch("hf://org/model")

    assert reason in str(caught.value)
    assert caught.value.retryable


def test_a_damaged_download_is_fetched_again_by_the_next_try(hub, fetch):
    hub.publish("org/model", FILES)
    hub.faults.append(spoiled("model.safetensors"))

    with pytest.raises(
        FetchError, match=r"model\.safetensors is damaged: its hash differs from the listed one"
    ) as caught:
        fetch("hf://org/model")

    assert caught.value.retryable
    assert (fetch("hf://org/model") / "model.safetensors").read_bytes() == LARGE


def test_the_error_of_an_unreachable_hub_is_retryable_and_has_no_secret(hub, step):
    gone = step("hf://org/model", HF_ENDPOINT="http://127.0.0.1:9", **{ENV_PREFIX + "ACCESS_TOKEN": "hf_reader"})

    out, err = gone.communicate(timeout=300)

    assert gone.returncode == node_env.TRY_AGAIN
    assert "http://127.0.0.1:9 could not be read" in err
    assert "hf_reader" not in out + err


def test_offline_a_cached_repository_is_used(hub, fetch, monkeypatch):
    repository = hub.publish("org/model", FILES)
    first = fetch("hf://org/model")
    repository.commit({"config.json": b"new"})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(hub.seen)

    assert fetch("hf://org/model") == first
    assert len(hub.seen) == before


def test_offline_the_cache_of_huggingface_hub_is_used(hub, fetch, monkeypatch):
    hub.publish("org/model", FILES)
    huggingface_hub.snapshot_download("org/model", endpoint=hub.endpoint, cache_dir=constants.HF_HUB_CACHE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    offline = fetch("hf://org/model")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert read_content(offline)["model.safetensors"] == LARGE
    assert fetch("hf://org/model") == offline


def test_offline_a_file_that_is_in_no_cache_is_named_with_a_remedy(hub, fetch, monkeypatch):
    hub.publish("org/model", FILES)
    (fetch("hf://org/model") / "config.json").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(FetchError, match=r"config\.json is not in .*, and HF_HUB_OFFLINE is set; unset it once"):
        fetch("hf://org/model")


def test_offline_an_uncached_repository_is_rejected_with_a_remedy(hub, fetch, monkeypatch):
    hub.publish("org/model", FILES)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(FetchError, match="was not fetched before, and HF_HUB_OFFLINE is set; unset it once"):
        fetch("hf://org/model")
