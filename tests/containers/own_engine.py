"""An engine that a test may stop, fill and limit."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import tarfile
import time
from pathlib import Path

import container_engine
import psutil

from trainer_core import ContainerBackendConfig
from trainer_core.model.config import TrainingRuntimeSource

PATIENCE = 300.0
TOOL = Path(__file__).parents[2] / "tools" / "container-engine"


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    assert result, f"timeout: {what}"
    return result


def listens(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def has_exited(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class OwnEngine:
    """An engine for one test. Its image is empty; the runtime mounts the Python of this machine."""

    IMAGE = "localhost/trainjob-empty:latest"

    def __init__(self, home: Path, **variables: str) -> None:
        self._home = home / "engine"
        self._env = {**os.environ, "CONTAINER_ENGINE_HOME": str(self._home), **variables}
        self._runtimes = home / "runtimes"
        self._processes: list[subprocess.Popen] = []
        self.config = ContainerBackendConfig(
            container_host=f"unix://{self._home}/podman.sock",
            runtime_source=TrainingRuntimeSource(sources=[str(self._runtimes)]),
        )
        self._tool("up")
        # Keeps the mount namespace of the container networks alive while the engine is stopped.
        inside = ["nsenter", "-m", "-t", (self._home / "pid").read_text().strip()]
        self._holder = subprocess.Popen([*inside, "sleep", "600"])
        self._processes.append(self._holder)

    def _tool(self, word: str) -> None:
        subprocess.run([str(TOOL), word], env=self._env, check=True, capture_output=True)

    def stop(self) -> None:
        service = psutil.Process(int((self._home / "pid").read_text()))
        self._tool("down")
        # The engine removes its socket when it exits, which must not be the socket of the next one.
        wait_until(lambda: has_exited(service), "the engine exits")

    def start_again(self) -> None:
        folders = ["--root", str(self._home / "storage"), "--runroot", str(self._home / "run")]
        address = f"unix://{self._home}/podman.sock"
        service = ["podman", *folders, "system", "service", "--time=0", address]
        env = {**os.environ, "CONTAINERS_CONF": str(self._home / "containers.conf")}
        command = ["nsenter", "-m", "-t", str(self._holder.pid), *service]
        self._processes.append(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
        # The socket exists before the engine listens to it.
        wait_until(lambda: listens(self._home / "podman.sock"), "the engine starts")

    def end(self) -> None:
        self._tool("down")
        for process in self._processes:
            process.terminate()
            process.wait()

    def prepare(self, engine) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as writer:
            for folder in ("tmp", "usr", "lib", "lib64", "bin", "etc", "proc", "dev", "sys", "run", "root"):
                made = tarfile.TarInfo(folder)
                made.type, made.mode = tarfile.DIRTYPE, 0o1777
                writer.addfile(made)
        engine._api.import_image(archive.getvalue(), repository=self.IMAGE.partition(":")[0])
        text = (container_engine.RUNTIMES / "python.yaml").read_text().replace(container_engine.IMAGE, self.IMAGE)
        folders = ("usr", "lib", "lib64", "bin")
        mounts = "".join(f"\n{' ' * 24}- {{name: {each}, mountPath: /{each}, readOnly: true}}" for each in folders)
        volumes = "".join(f"\n{' ' * 20}- {{name: {each}, hostPath: {{path: /{each}}}}}" for each in folders)
        text += f"{' ' * 22}volumeMounts:{mounts}\n{' ' * 18}volumes:{volumes}\n"
        self._runtimes.mkdir()
        (self._runtimes / "python.yaml").write_text(text)
