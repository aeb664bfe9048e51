"""Images of our own, built from their Dockerfiles in a container engine that needs no registry and no index."""

from __future__ import annotations

import gc
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import container_engine

from trainer_core.node import locks

REPOSITORY = Path(__file__).parents[2]
BASE = container_engine.IMAGE
#: What the Dockerfiles copy.
COPIED = (
    *("pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
    *("trainer_core", "airflow_provider", "kfp_components"),
)
#: Packages come from a folder of the base image, as they do where an administrator allows no index.
WITH_WHEELS = b"ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY wheels /wheels\nCOPY pip.conf /etc/pip.conf\n"
PIP_CONF = b"[global]\nno-index = true\nfind-links = /wheels\n"
EXTRAS = "cli,kubernetes,s3,huggingface"
#: What builds a wheel, and what the initializer image adds to its extras.
BESIDES = ("hatchling>=1.27",)


@contextmanager
def engine() -> Iterator[Any]:
    """A client of the container engine. A test that uses it is skipped where no engine answers."""
    import docker

    client = docker.DockerClient(base_url=container_engine.engine().address, timeout=600)
    yield client
    client.close()
    # The library leaves sockets to the garbage collector.
    gc.collect()


def built(client: Any, name: str, dockerfile: str, target: str | None = None) -> str:
    """Return the name of an image, and build it first if these sources have none yet."""
    pins = {name: (REPOSITORY / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")}
    wanted = [
        *pins.items(),
        ("base", client.images.get(BASE).id.encode()),
        ("asked", repr((EXTRAS, BESIDES)).encode()),
    ]
    base = f"localhost/trainjob-wheels:{_digest(wanted)}"
    # Tests that run at the same time download them once.
    with locks.locked(Path(tempfile.gettempdir()) / f"{base.rpartition('/')[2]}.lock"):
        if not _has(client, base):
            _build_with_wheels(client, base)
    sources = list(_sources(dockerfile))
    image = f"localhost/{name}:{_digest([*sources, ('base', base.encode())])}"
    if not _has(client, image):
        _build(client, sources, dockerfile, base, image, target)
    return image


def _build_with_wheels(client: Any, tag: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [(f"wheels/{wheel.name}", wheel.read_bytes()) for wheel in _wheels(client, Path(folder))]
    files += [("Dockerfile", WITH_WHEELS), ("pip.conf", PIP_CONF)]
    _build(client, files, "Dockerfile", BASE, tag)


def _has(client: Any, image: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


def _wheels(client: Any, folder: Path) -> Iterable[Path]:
    """Download what the images install, for their Python."""
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = client.containers.run(BASE, ["python3", "-c", asked], remove=True).decode().strip()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", python]
    places = ["--constraint", str(REPOSITORY / "constraints.txt"), "--dest", str(folder)]
    subprocess.run([*command, *places, f"{REPOSITORY}[{EXTRAS}]", *BESIDES], check=True)
    return folder.glob("*.whl")


def _sources(dockerfile: str) -> Iterable[tuple[str, bytes]]:
    for name in (*COPIED, dockerfile):
        path = REPOSITORY / name
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file() and "__pycache__" not in each.parts:
                yield str(each.relative_to(REPOSITORY)), each.read_bytes()


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    whole = hashlib.sha256()
    for name, content in files:
        whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:16]


def _build(
    client: Any,
    files: Iterable[tuple[str, bytes]],
    dockerfile: str,
    base: str,
    tag: str,
    target: str | None = None,
) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    context.seek(0)
    arguments = {"fileobj": context, "custom_context": True, "dockerfile": dockerfile, "tag": tag, "target": target}
    client.images.build(**arguments, buildargs={"BASE_IMAGE": base}, rm=True)
