"""hf://: what is fetched of the Hub, with whose leave, and what becomes of a connection that does not hold."""

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

from trainer_core.fetching import schemes, store
from trainer_core.fetching.progress import Lines
from trainer_core.fetching.settings import PREFIX, Settings
from trainer_core.fetching.source import FetchError
from trainer_core.inside import contract

#: The library hands on what it reads in pieces of ten megabytes: less is not there to go on from.
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
        return store.fetch(schemes.source(Settings(role, uri, **settings)), cache, Lines(role))[0]

    return fetch


@pytest.fixture
def step(hub, cache, tmp_path):
    """The program of an initializer step, as a backend starts it."""
    begun = []

    def step(uri, **more):
        told = {"ROLE": "model", "STORAGE_URI": uri, "CACHE": str(cache), "TARGET": str(tmp_path / "model")}
        env = {**os.environ, "HF_HOME": str(tmp_path), **{PREFIX + name: text for name, text in told.items()}, **more}
        command = [sys.executable, "-m", "trainer_core.fetching"]
        begun.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return begun[-1]

    yield step
    for process in begun:
        process.kill()
        process.communicate()


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_dataset_is_fetched_whole(hub, fetch):
    hub.publish("org/data", FILES, kind="dataset")

    assert content(fetch("hf://org/data", role="dataset")) == FILES


def test_a_listing_of_many_pages_is_read_to_its_end(fetch, hub):
    many = {f"part-{number}.csv": b"%d" % number for number in range(25)}
    hub.page = 10
    hub.publish("org/data", many, kind="dataset")

    assert content(fetch("hf://org/data", role="dataset")) == many


def test_of_a_model_weights_and_what_describes_them_are_fetched(hub, fetch):
    hub.publish("org/model", FILES)

    assert set(content(fetch("hf://org/model"))) == {"config.json", "deep/ü x.txt", "model.safetensors"}


def test_ignored_files_are_left_out(hub, fetch):
    hub.publish("org/model", FILES)

    assert set(content(fetch("hf://models/org/model", ignore=("*.txt", "model.*")))) == {"config.json"}


@pytest.mark.parametrize(("path", "found"), [("pytorch_model.bin", "pytorch_model.bin"), ("deep", "deep/ü x.txt")])
def test_a_path_in_the_uri_is_all_that_is_fetched(hub, fetch, path, found):
    hub.publish("org/model", FILES)

    assert set(content(fetch(f"hf://org/model/{path}", ignore=("*.bin",)))) == {found}


def test_a_revision_stays_what_it_was(hub, fetch):
    repository = hub.publish("org/model", {"config.json": b"1"})
    repository.tag("v1")
    first = repository.refs["main"]
    repository.commit({"config.json": b"2"})
    repository.commit({"config.json": b"3"}, branch="refs/pr/7")

    read = [fetch(f"hf://org/model{at}") for at in ("@v1", f"@{first}", "", "@main", "@refs/pr/7")]

    assert [(folder / "config.json").read_bytes() for folder in read] == [b"1", b"1", b"2", b"2", b"3"]
    assert len(set(read)) == 3


def test_what_is_there_is_not_fetched_again(hub, fetch):
    hub.publish("org/model", FILES)
    fetch("hf://org/model")
    before = len(hub.asked("/resolve/"))

    fetch("hf://org/model")

    assert len(hub.asked("/resolve/")) == before


def test_what_the_library_has_in_its_own_cache_is_taken_from_there(hub, fetch):
    hub.publish("org/model", FILES)
    huggingface_hub.snapshot_download("org/model", endpoint=hub.endpoint, cache_dir=constants.HF_HUB_CACHE)
    before = len(hub.asked("/resolve/"))

    assert (fetch("hf://org/model") / "model.safetensors").read_bytes() == LARGE
    assert len(hub.asked("/resolve/")) == before


def test_what_is_damaged_in_the_cache_of_the_library_is_downloaded(hub, fetch):
    hub.publish("org/model", FILES)
    cached = huggingface_hub.hf_hub_download("org/model", "config.json", endpoint=hub.endpoint)
    Path(cached).write_bytes(b"[]")

    assert (fetch("hf://org/model") / "config.json").read_bytes() == b"{}"


def test_a_private_repository_is_fetched_with_a_token_that_no_other_host_sees(hub, fetch):
    hub.publish("org/model", FILES, private=True, gated=True, readers={"hf_reader"})

    fetch("hf://org/model", access_token="hf_reader")

    assert {(seen.origin, seen.token) for seen in hub.asked("org/model")} == {("hub", "hf_reader"), ("large", None)}


def test_a_token_in_the_environment_is_used(hub, fetch, monkeypatch):
    hub.publish("org/model", FILES, private=True, readers={"hf_reader"})
    monkeypatch.setenv("HF_TOKEN", "hf_reader")

    assert (fetch("hf://org/model") / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("uri", "token", "reason"),
    [
        ("hf://org/none", None, "knows none of that name, or it is private: then give an access_token"),
        ("hf://org/none", "hf_reader", "knows none of that name, or the token does not let it be seen"),
        ("hf://org/private", None, "knows none of that name, or it is private: then give an access_token"),
        ("hf://org/private", "hf_stranger", "knows none of that name, or the token does not let it be seen"),
        ("hf://org/open", "hf_wrong", "refuses the token (401): it is wrong or has expired; make a new one at"),
        ("hf://org/gated", None, "it is gated; accept its terms on its page there, and give a token of that account"),
        ("hf://org/gated", "hf_stranger", "it is gated and the account of the token has no access; ask for it"),
        ("hf://org/disabled", None, "has disabled it; take another one"),
        ("hf://org/open@v9", None, "hf://org/open@v9: there is no such revision; name a branch, a tag or a whole"),
        ("hf://org/open/nothing", None, "none of its 4 files is wanted; see ignore_patterns, or name a file or folder"),
        ("hf://org/weights", None, "of a model only *.json, *.safetensors, *.model, *.txt are taken"),
        ("hf://datasets/org/open", None, "hf://datasets/org/open names no model; write hf://owner/name"),
        ("hf://org/open@", None, "names no model; write hf://owner/name"),
        ("hf://org/a:b", None, "'org/a:b' is no name of a model; write hf://owner/name"),
        ("hf://org/evil", None, "'../evil.json' is no path inside a folder; rename it at its source"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line_with_a_remedy(hub, fetch, uri, token, reason):
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


def test_a_body_that_breaks_off_goes_on_where_it_was(hub, fetch):
    hub.publish("org/model", FILES)
    hub.faults.append(cut("model.safetensors", after=PIECE + 1000))

    assert (fetch("hf://org/model") / "model.safetensors").read_bytes() == LARGE
    assert [seen.range for seen in hub.asked("model.safetensors", "GET")][-1] == f"bytes={PIECE}-"


def test_a_fetch_that_was_killed_goes_on_where_it_was(hub, step, cache):
    hub.publish("org/model", FILES)
    pause = held("model.safetensors", after=PIECE + 1000)
    hub.faults.append(pause)
    killed = step("hf://org/model")
    assert pause.reached.wait(60)
    wait_for_a_part(cache)
    killed.send_signal(signal.SIGKILL)
    killed.wait(60)

    again = step("hf://org/model")

    assert again.wait(60) == 0, again.stderr.read()
    assert [seen.range for seen in hub.asked("model.safetensors", "GET")][-1] == f"bytes={PIECE}-"


def wait_for_a_part(cache):
    """Until the first piece of the large file is on the disk."""
    end = time.monotonic() + 60
    while not any(part.stat().st_size >= PIECE for part in cache.glob(".*.part/model.safetensors")):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_busy_hub_is_asked_again(hub, fetch):
    hub.publish("org/model", FILES)
    hub.faults += [refused("/api/models/org/model/revision", 503), refused("resolve", 429, Retry_After="0")]

    assert (fetch("hf://org/model") / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(("status", "reason"), [(503, "answers 503; it has trouble"), (429, "asked too often (429)")])
def test_a_hub_that_stays_busy_is_worth_another_try(hub, fetch, status, reason):
    hub.publish("org/model", FILES)
    hub.faults.append(refused("/api/models/org/model/revision", status, times=99))

    with pytest.raises(FetchError) as caught:
        fetch("hf://org/model")

    assert reason in str(caught.value)
    assert caught.value.retryable


def test_what_came_damaged_is_fetched_anew_by_the_next_try(hub, fetch):
    hub.publish("org/model", FILES)
    hub.faults.append(spoiled("model.safetensors"))

    with pytest.raises(FetchError, match=r"model\.safetensors came damaged: it has another hash than listed") as caught:
        fetch("hf://org/model")

    assert caught.value.retryable
    assert (fetch("hf://org/model") / "model.safetensors").read_bytes() == LARGE


def test_a_hub_that_is_not_there_is_worth_another_try_and_no_secret_is_told(hub, step):
    gone = step("hf://org/model", HF_ENDPOINT="http://127.0.0.1:9", **{PREFIX + "ACCESS_TOKEN": "hf_reader"})

    out, err = gone.communicate(timeout=60)

    assert gone.returncode == contract.TRY_AGAIN
    assert "http://127.0.0.1:9 could not be read" in err
    assert "hf_reader" not in out + err


def test_offline_what_was_fetched_before_is_used(hub, fetch, monkeypatch):
    repository = hub.publish("org/model", FILES)
    first = fetch("hf://org/model")
    repository.commit({"config.json": b"new"})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(hub.seen)

    assert fetch("hf://org/model") == first
    assert len(hub.seen) == before


def test_offline_what_the_library_has_in_its_own_cache_is_used(hub, fetch, monkeypatch):
    hub.publish("org/model", FILES)
    huggingface_hub.snapshot_download("org/model", endpoint=hub.endpoint, cache_dir=constants.HF_HUB_CACHE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    offline = fetch("hf://org/model")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert content(offline)["model.safetensors"] == LARGE
    assert fetch("hf://org/model") == offline


def test_offline_what_is_nowhere_is_refused_with_the_remedy(hub, fetch, monkeypatch):
    hub.publish("org/model", FILES)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(FetchError, match="was not fetched before and HF_HUB_OFFLINE is set; unset it once"):
        fetch("hf://org/model")
