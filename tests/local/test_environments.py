"""Environments for packages_to_install, with uv and with pip: built once, shared, and complete or absent."""

from __future__ import annotations

import base64
import functools
import http.server
import os
import shutil
import site
import subprocess
import threading
import venv
import zipfile
from pathlib import Path

import psutil
import pytest
from local_jobs import PATIENCE, kill, supervisor_of, wait_until_dead

import trainer_core
from trainer_core import Category
from trainer_core.backends.local import gc
from trainer_core.backends.local.job_store import StateFolder

# Environments are built.
pytestmark = pytest.mark.slow

#: A build backend that waits at a FIFO of the test.
BLOCKING_BACKEND = """
import os
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def build_wheel(*_, **__):
    Path(os.environ["BUILD_STARTED"]).write_text("started")
    Path(os.environ["BUILD_GATE"]).read_text()
    raise RuntimeError("build failed")

def prepare_metadata_for_build_wheel(*_, **__):
    build_wheel()
"""


def imports_tiny():
    import tiny

    return tiny.VERSION


def write_wheel(folder: Path, version: str) -> None:
    """Write a minimal wheel."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"tiny-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder of wheels, which is the only package source."""
    folder = tmp_path / "wheels"
    write_wheel(folder, "1.0")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


@pytest.fixture
def without_uv(monkeypatch):
    folders = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(folder for folder in folders if not (Path(folder) / "uv").exists()))


def environments(home):
    return [path for path in (home / "environments").iterdir() if path.is_dir()]


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_uv_installs_packages_if_it_is_on_path(client, ask, wheels, home):
    assert client.wait(client.submit(ask(imports_tiny, packages_to_install=["tiny"]))).result == "1.0"
    assert "tiny==1.0" in "\n".join(client.get_job_logs("job"))


def test_pip_installs_packages_if_uv_is_not_on_path(client, ask, wheels, without_uv):
    assert client.wait(client.submit(ask(imports_tiny, packages_to_install=["tiny"]))).result == "1.0"
    assert "Successfully installed tiny-1.0" in "\n".join(client.get_job_logs("job"))


#: A training that asks for another version of a package of the submitter, and imports what a node finds.
SUBMITTER = """
import sys
from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainerClient

def train():
    import os
    import tiny
    import trainer_core
    trainer_core.progress(step=1)
    return [tiny.VERSION, os.environ.get("PYTHONPATH")]

if __name__ == "__main__":
    client = TrainerClient(LocalProcessBackendConfig(home=sys.argv[1]))
    name = client.train(runtime="python", trainer=CustomTrainer(func=train, packages_to_install=["tiny==2.0"]))
    print(client.wait(name, timeout=300).result)
"""


@pytest.fixture
def installation(tmp_path):
    """The interpreter of an environment with this package and tiny 1.0 in site-packages, as pip installs wheels."""
    venv.create(tmp_path / "installation", symlinks=True)
    (packages,) = (tmp_path / "installation").glob("lib/*/site-packages")
    shutil.copytree(Path(trainer_core.__file__).parent, packages / "trainer_core")
    (packages / "tiny.py").write_text("VERSION = '1.0'\n")
    # The dependencies. What is installed in this environment comes before them.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return tmp_path / "installation" / "bin" / "python"


def test_packages_of_a_job_take_precedence_over_those_of_the_environment_that_submits_it(
    installation, wheels, tmp_path, home
):
    write_wheel(wheels, "2.0")
    (tmp_path / "submitter.py").write_text(SUBMITTER)
    submitted = subprocess.run([installation, tmp_path / "submitter.py", home], capture_output=True, text=True)
    assert (submitted.stdout, submitted.stderr) == ("['2.0', None]\n", "")


class Index(http.server.SimpleHTTPRequestHandler):
    """A package index that needs a password, and records the processes whose arguments contain it."""

    def send_head(self):
        self.server.seen += [each.info["cmdline"] for each in psutil.process_iter(["cmdline"]) if shows_password(each)]
        if self.headers["Authorization"] == "Basic " + base64.b64encode(b"me:secret-word").decode():
            return super().send_head()
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.end_headers()
        return None

    def log_message(self, *_):
        pass


def shows_password(process):
    return "secret-word" in " ".join(process.info["cmdline"] or ())


@pytest.fixture
def index(wheels, monkeypatch):
    for name in ("PIP_FIND_LINKS", "PIP_NO_INDEX", "UV_NO_INDEX"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (wheels / "simple").mkdir()
    (wheels / "simple" / "tiny").symlink_to(wheels)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Index, directory=wheels)) as server:
        server.seen = []
        server.url = f"http://me:secret-word@127.0.0.1:{server.server_port}/simple"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("installer", ["wheels", "without_uv"], ids=["uv", "pip"])
def test_the_password_of_an_index_is_not_in_process_arguments(client, ask, index, installer, request):
    request.getfixturevalue(installer)
    ref = client.submit(ask(imports_tiny, packages_to_install=["tiny"], pip_index_urls=[index.url]))
    assert client.wait(ref, timeout=PATIENCE).result == "1.0"
    assert index.seen == []


@pytest.mark.parametrize("installer", ["wheels", "without_uv"], ids=["uv", "pip"])
def test_the_index_of_pip_is_used_if_the_trainer_names_none(client, ask, index, installer, request, monkeypatch):
    request.getfixturevalue(installer)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    ref = client.submit(ask(imports_tiny, packages_to_install=["tiny"]))
    assert client.wait(ref, timeout=PATIENCE).result == "1.0"


def test_an_environment_is_built_once_for_concurrent_and_later_jobs(client, ask, wheels, home):
    names = ["one", "two", "three"]
    refs = [client.submit(ask(imports_tiny, packages_to_install=["tiny"], name=name)) for name in names]
    assert [client.wait(ref, timeout=PATIENCE).result for ref in refs] == ["1.0"] * 3
    shutil.rmtree(wheels)
    later = client.submit(ask(imports_tiny, packages_to_install=["tiny"], name="later"))
    assert client.wait(later, timeout=PATIENCE).result == "1.0"
    assert sorted(bool(list(client.get_job_logs(name))) for name in names) == [False, False, True]
    assert list(client.get_job_logs("later")) == []
    assert len(environments(home)) == 1


def test_a_failed_build_is_diagnosed_and_its_environment_is_removed(client, ask, wheels, home):
    diagnosis = client.wait(client.submit(ask(imports_tiny, packages_to_install=["tiny==9.9"]))).diagnosis
    assert (diagnosis.category, diagnosis.step, diagnosis.retryable) == (Category.IMAGE, "node-0", False)
    assert "installing tiny==9.9 failed" in diagnosis.reason
    assert "tiny" in "\n".join(diagnosis.log_tail)
    assert environments(home) == []
    write_wheel(wheels, "9.9")
    again = client.submit(ask(imports_tiny, packages_to_install=["tiny==9.9"], name="again"))
    assert client.wait(again).result == "9.9"


@pytest.fixture
def building(client, ask, tmp_path, monkeypatch, wheels, gate):
    """The ref of a job whose environment is being built."""
    source = tmp_path / "tiny-source"
    source.mkdir()
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (source / "pyproject.toml").write_text(f'{system}[project]\nname = "tiny"\nversion = "2.0"\n')
    monkeypatch.setenv("BUILD_GATE", gate)
    # Opening the FIFO for reading waits until the build has started.
    started = tmp_path / "started"
    os.mkfifo(started)
    monkeypatch.setenv("BUILD_STARTED", str(started))
    (source / "backend.py").write_text(BLOCKING_BACKEND)
    ref = client.submit(ask(imports_tiny, packages_to_install=[f"tiny @ {source.as_uri()}"]))
    assert started.read_text() == "started"
    return ref


def find_installers(home):
    """Return the processes that install into an environment of this state folder."""
    folder = str(home / "environments")
    return [each for each in psutil.process_iter(["cmdline"]) if folder in " ".join(each.info["cmdline"] or ())]


def test_the_installer_ends_when_the_supervisor_is_killed(client, ask, building, home):
    installers = find_installers(home)
    kill(supervisor_of(home, "job"))
    assert client.wait(building, timeout=PATIENCE).diagnosis.category == Category.INFRASTRUCTURE
    assert installers
    assert wait_until_dead(installers)


def test_cancelling_ends_the_installer(client, ask, building, home):
    installers, supervisor = find_installers(home), supervisor_of(home, "job")
    client.cancel(building)
    assert client.get_job_outcome(building).diagnosis.category == Category.DELETED
    assert wait_until_dead([*installers, supervisor])
    assert environments(home) == []


def test_an_incomplete_environment_is_built_again_and_removed_a_day_after_its_last_job(client, ask, wheels, home):
    client.wait(client.submit(ask(imports_tiny, packages_to_install=["tiny"])))
    (environment,) = environments(home)
    (environment / "trainjob-ready").unlink()
    shutil.rmtree(environment / "lib")
    again = client.submit(ask(imports_tiny, packages_to_install=["tiny"], name="again"))
    assert client.wait(again).result == "1.0"

    os.utime(environment / "trainjob-ready", (0, 0))
    client.delete_job("job")
    gc.remove_unused_environments(StateFolder(home))
    assert environments(home) == [environment]
    client.delete_job("again")
    gc.remove_unused_environments(StateFolder(home))
    assert environments(home) == []


def fails_with_tiny():
    import tiny

    raise RuntimeError(f"tiny {tiny.VERSION}")


def test_a_job_with_packages_is_debugged_in_its_environment(client, ask, wheels, home):
    client.wait(client.submit(ask(fails_with_tiny, packages_to_install=["tiny"])))
    shutil.rmtree(wheels)

    result = client.debug("job", pdb=False)

    assert str(result) == "same error as job: UserCode in node-0: RuntimeError: tiny 1.0"
    assert len(environments(home)) == 1
