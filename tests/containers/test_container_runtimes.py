"""Runtime sources: folders, files, URLs and repositories, and the fallbacks without a network."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from pathlib import Path

import pytest

from trainer_core.backends.container import runtimes
from trainer_core.backends.container.runtimes import RuntimeCatalog
from trainer_core.base.errors import BackendUnavailableError, RuntimeNotFoundError

PYTHON = (Path(runtimes.__file__).parent / "runtimes" / "python.yaml").read_text()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    # However slow the machine is, a server that answers is not away.
    monkeypatch.setattr(runtimes, "_TIMEOUT", 60.0)


def runtime(name: str, image: str = "mine:1") -> str:
    return PYTHON.replace("name: python\n", f"name: {name}\n", 1).replace("docker.io/library/python:3.12-slim", image)


class Web:
    """An HTTP server with pages that a test can remove."""

    def __init__(self):
        self.pages: dict[str, str] = {}
        self.requests: list[str] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                web.requests.append(self.path)
                page = web.pages.get(self.path)
                self.send_response(404 if page is None else 200)
                body = (page or "").encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def web():
    web = Web()
    yield web
    web.stop()


def names(source):
    return [each.name for each in RuntimeCatalog([source] if source else []).list()]


def test_without_a_source_the_packaged_runtimes_are_listed():
    assert names(None) == ["python", "torch-distributed", "trl-llm"]


@pytest.mark.parametrize("spelling", ["{}", "file://{}"])
def test_runtimes_of_a_folder_take_precedence(tmp_path, spelling):
    (tmp_path / "mine.yaml").write_text(runtime("python") + "\n---\n" + runtime("mine"))
    found = RuntimeCatalog([spelling.format(tmp_path)])
    assert [each.name for each in found.list()] == ["mine", "python", "torch-distributed", "trl-llm"]
    assert found.list()[1].trainer.image == "mine:1"


def test_an_invalid_file_is_skipped_with_a_warning(tmp_path, caplog):
    (tmp_path / "bad.yaml").write_text("kind: [")
    (tmp_path / "good.yaml").write_text(runtime("mine"))
    assert "mine" in names(str(tmp_path))
    assert "bad.yaml" in caplog.text


def test_an_unknown_runtime_is_refused_with_the_known_names():
    with pytest.raises(RuntimeNotFoundError, match=r"runtime 'x' does not exist.* python, torch-distributed"):
        RuntimeCatalog([]).get("x")


def test_a_url_is_downloaded_once_a_day(web):
    web.pages["/mine.yaml"] = runtime("mine")
    for _ in range(3):
        assert "mine" in names(f"{web.url}/mine.yaml")
    assert web.requests == ["/mine.yaml"]


def test_the_yaml_files_of_a_repository_folder_are_downloaded(web, monkeypatch):
    monkeypatch.setattr(runtimes, "_GITHUB_API", web.url)
    entries = [
        {"type": "file", "name": "mine.yaml", "download_url": f"{web.url}/raw/mine.yaml"},
        {"type": "file", "name": "kustomization.txt", "download_url": f"{web.url}/raw/no"},
        {"type": "dir", "name": "more", "download_url": None},
    ]
    web.pages["/kubeflow/trainer/contents/manifests/base/runtimes"] = json.dumps(entries)
    web.pages["/raw/mine.yaml"] = runtime("mine")
    assert "mine" in names("github://kubeflow/trainer")
    web.pages["/me/mine/contents/here"] = json.dumps(entries)
    assert "mine" in names("github://me/mine/here")


def test_without_a_network_the_packaged_runtimes_are_used_with_one_warning(web, caplog):
    source = f"{web.url}/nowhere.yaml"
    web.stop()
    assert names(source) == ["python", "torch-distributed", "trl-llm"] == names(source)
    (warning,) = [record.getMessage() for record in caplog.records if source in record.getMessage()]
    address = web.url.removeprefix("http://")
    assert warning == (
        f"runtime source {source} cannot be read ({address} cannot be reached); the runtimes of this package are used"
    )


def test_without_a_network_cached_files_are_used_whatever_their_age(web, caplog, monkeypatch):
    web.pages["/mine.yaml"] = runtime("mine")
    source = f"{web.url}/mine.yaml"
    names(source)
    del web.pages["/mine.yaml"]
    monkeypatch.setattr(runtimes, "_DAY_SECONDS", -1.0)
    assert "mine" in names(source)
    assert "its cached files are used" in caplog.text


def test_without_the_extra_the_runtimes_of_a_network_source_name_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(BackendUnavailableError, match=r"needs the package docker, .*'\.\[containers\]'"):
        RuntimeCatalog(["github://kubeflow/trainer"]).list()
