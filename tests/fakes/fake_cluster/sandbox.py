"""Where a container's process lives: its folders, its own Python, and names of hosts that lead to this machine."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from trainer_core.node import env

_MOUNTED = (env.DATASET_PATH, env.MODEL_PATH, env.OUTPUT_PATH)
#: Variables with paths that may be in claims.
_IN_CLAIMS = (env.CHECKPOINT_PATH, env.CHECKPOINTS)
#: Ports that no connection is given by chance before a job binds its own.
_PORTS = range(10_000, 20_000)
#: Not the generator of the module: hypothesis seeds that with the same number in each process that runs tests.
_RANDOM = random.Random()  # noqa: S311 -- ports, no secrets

#: Labels that name the job of a pod; what its pods are called by each other, and the port at which they meet.
_MEETINGS = {
    "jobset.sigs.k8s.io/jobset-name": (r"{job}-[a-z0-9-]+-\d+-\d+\.{job}", 29500),
    "training.kubeflow.org/job-name": (r"{job}-(?:master|worker)-\d+", 23456),
}


class Network:
    """One port on this machine for the rendezvous of each job, in place of the same port on many pods."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, str], int] = {}

    def local(self, metadata: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, str]:
        """Return variables in which the hosts of a pod's job are this machine, and its port is unused."""
        labels = metadata.get("labels") or {}
        for label, (hosts, port) in _MEETINGS.items():
            if job := labels.get(label):
                host = re.compile(rf"\b{hosts.format(job=re.escape(job))}\b")
                return self._local((metadata["namespace"], job), host, port, values)
        return dict(values)

    def _local(
        self, job: tuple[str, str], host: re.Pattern[str], port: int, values: Mapping[str, str]
    ) -> dict[str, str]:
        result = {}
        for name, value in values.items():
            found = host.sub("127.0.0.1", value)
            if found != value or name.endswith("_PORT"):
                found = re.sub(rf"\b{port}\b", str(self._port(job)), found)
            result[name] = found
        return result

    def _port(self, job: tuple[str, str]) -> int:
        if job not in self._ports:
            tried = _RANDOM.sample(_PORTS, len(_PORTS))
            self._ports[job] = next(port for port in tried if port not in self._ports.values() and _is_free(port))
        return self._ports[job]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Sandbox:
    """The files of one container.

    A separate Python (a virtual environment made by hand, in a millisecond), so that what a job installs stays in
    its container. What this Python has installed is seen there, trainer_core excepted where it is installed as
    editable: the image of a training does not have it.
    """

    def __init__(self, root: Path, volumes: Path, pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
        self._root = root / container["name"]
        self._volumes = volumes
        self._pod = pod
        self._container = container
        #: What a process writes there becomes the termination message.
        self.termination_log = self._root / "termination-log"

    @property
    def home(self) -> Path:
        return self._root / "home"

    def prepare(self) -> None:
        """Create empty folders: of the previous run only the volumes are kept."""
        shutil.rmtree(self._root, ignore_errors=True)
        for folder in (self.home, self._root / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        self.termination_log.write_bytes(b"")
        _make_python(self._root / "python")

    def environment(self) -> dict[str, str]:
        """Return what an image sets, and where its files are on this machine."""
        path = [self._root / "python" / "bin", Path(sys.executable).parent, *map(Path, os.defpath.split(":"))]
        return {
            "PATH": ":".join(str(folder) for folder in path),
            "HOME": str(self.home),
            "HOSTNAME": self._pod["spec"].get("hostname") or self._pod["metadata"]["name"],
            "TMPDIR": str(self._root / "tmp"),
            "LANG": "C.UTF-8",
            env.TERMINATION_LOG: str(self.termination_log),
        }

    def mounted(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that name folders, as folders of this machine."""
        folders = {name: str(self.host_path(variables.get(name) or env.DEFAULTS[name])) for name in _MOUNTED}
        claimed = {name: self._as_on_host(variables[name]) for name in _IN_CLAIMS if name in variables}
        return {**folders, **claimed}

    def host_path(self, path: str) -> Path:
        """Return where a path of the container lies on this machine; its folder is made."""
        wanted = PurePosixPath(path)
        mounts = self._container.get("volumeMounts") or ()
        fitting = [mount for mount in mounts if wanted.is_relative_to(mount["mountPath"])]
        if fitting:
            mount = max(fitting, key=lambda one: len(one["mountPath"]))
            found = self._volume(mount["name"]) / mount.get("subPath", "") / wanted.relative_to(mount["mountPath"])
        elif not wanted.is_relative_to("/workspace"):
            return Path(path)
        else:
            found = self._root / "root" / path.lstrip("/")
        found.parent.mkdir(parents=True, exist_ok=True)
        return found

    def termination_message(self) -> str:
        """Return what a process left there: 4,096 bytes at most."""
        data = self.termination_log.read_bytes() if self.termination_log.exists() else b""
        return self._as_in_container(data[: env.RECORD_LIMIT].decode(errors="replace"))

    def _as_in_container(self, text: str) -> str:
        """Write paths in mounted claims as the container sees them: a step of a pipeline may mount the claim too."""
        for path, folder in self._claims():
            text = text.replace(f"{folder}/", f"{path}/")
        return text

    def _as_on_host(self, text: str) -> str:
        """Write paths in mounted claims, alone or as strings of JSON, as this machine sees them."""
        for path, folder in self._claims():
            text = re.sub(rf'(^|"){re.escape(path)}/', lambda found, to=folder: f"{found[1]}{to}/", text)
        return text

    def _claims(self) -> Iterator[tuple[str, Path]]:
        """Yield where claims are mounted, and their folders."""
        claims = {v["name"] for v in self._pod["spec"].get("volumes") or () if "persistentVolumeClaim" in v}
        for mount in self._container.get("volumeMounts") or ():
            if mount["name"] in claims:
                yield mount["mountPath"].rstrip("/"), self._volume(mount["name"]) / mount.get("subPath", "")

    def _volume(self, name: str) -> Path:
        metadata = self._pod["metadata"]
        claims = self._volumes / metadata["namespace"]
        for volume in self._pod["spec"].get("volumes") or ():
            if volume["name"] == name and "persistentVolumeClaim" in volume:
                return claims / volume["persistentVolumeClaim"]["claimName"]
            if volume["name"] == name:
                return self._root.parent / "volumes" / name
        # A template of the JobSet's volumeClaimPolicies: one claim for all of its pods.
        jobset = (metadata.get("labels") or {}).get("jobset.sigs.k8s.io/jobset-uid", metadata["uid"])
        return claims / f"{name}-{jobset}"


def _make_python(folder: Path) -> None:
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(executable)
    (folder / "pyvenv.cfg").write_text(f"home = {executable.parent}\ninclude-system-site-packages = false\n")
    (packages / "image.pth").write_text(sysconfig.get_path("purelib") + "\n")
