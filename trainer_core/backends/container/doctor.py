"""What `trainjob doctor` finds out of an engine: what works, what does not, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from trainer_core.backends.container.detect import PODMAN, Tried, look_for
from trainer_core.backends.container.engine import Engine
from trainer_core.backends.container.runtimes import Runtimes
from trainer_core.cluster.checkup import LIMITED, MISSING, OK, UNKNOWN, Check, Report
from trainer_core.configs import ContainerBackendConfig
from trainer_core.errors import BackendUnavailableError

__all__ = ["examine"]

#: Of Docker 20.10 and Podman 4.
_OLDEST_API = (1, 41)


def examine(config: ContainerBackendConfig) -> Report:
    """Look at everything that the backend needs of an engine. Creates nothing.

    Args:
        config: Which engine.
    """
    if find_spec("docker") is None:
        what = "pip install 'trainjob-workflows[containers]', for Podman, too"
        return Report((Check("docker library", MISSING, "is not installed", what),))
    engine, tried = look_for(config)
    places = tuple(_place(each, each is tried[-1] and engine is not None) for each in tried)
    if engine is None:
        return Report((*places, Check("engine", MISSING, "none answers", "start Docker or Podman, or set DOCKER_HOST")))
    try:
        return Report((*places, *_engine(engine), *_images(engine, config), *_runtimes(engine, config)))
    except BackendUnavailableError as error:
        return Report((*places, Check("engine", MISSING, str(error))))
    finally:
        engine.close()


def _place(tried: Tried, taken: bool) -> Check:
    where = tried.candidate
    found = f"{where.address}: {tried.found}"
    # Those before the one that answers are nobody's concern.
    return Check(where.says, OK if taken else UNKNOWN, found)


def _engine(engine: Engine) -> Iterator[Check]:
    version = engine.speaks or "0"
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_API:
        yield Check("API", MISSING, version, f"needs {'.'.join(map(str, _OLDEST_API))}; use a newer engine")
    else:
        yield Check("API", OK, version)
    info = engine.info()
    if info.get("MemoryLimit") is False:
        yield Check("limits", LIMITED, "memory is not limited", "memory of resources_per_node is asked for in vain")
    if not engine.local:
        yield Check("machine", LIMITED, "is another one", "file:// sources cannot be shown to containers")
    yield _gpu(engine, info)


def _gpu(engine: Engine, info: Mapping[str, Any]) -> Check:
    if engine.product == PODMAN:
        how = 'jobs that ask for gpu are refused: devices = ["nvidia.com/gpu=all"] in containers.conf gives them to all'
        return Check("gpu", LIMITED, "Podman hands none out over this API", how)
    if "nvidia" in (info.get("Runtimes") or {}) or info.get("CDISpecDirs"):
        return Check("gpu", OK, "can be handed out")
    what = "jobs that ask for gpu fail: install nvidia-container-toolkit"
    return Check("gpu", LIMITED, "no runtime for NVIDIA is set up", what)


def _images(engine: Engine, config: ContainerBackendConfig) -> Iterator[Check]:
    for role in ("dataset", "model"):
        image = getattr(config, f"{role}_initializer_image")
        yield _image(engine, f"image of the {role} initializer", image, config.pull_policy)


def _runtimes(engine: Engine, config: ContainerBackendConfig) -> Iterator[Check]:
    for runtime in Runtimes(config.runtime_source.sources).list():
        image = runtime.trainer.image
        yield _image(engine, f"runtime {runtime.name}", image, config.pull_policy)


def _image(engine: Engine, what: str, image: str, policy: str) -> Check:
    if engine.has_image(image):
        return Check(what, OK, image)
    if policy == "Never":
        return Check(what, LIMITED, f"{image} is not there", "pull_policy is Never: pull it yourself")
    return Check(what, UNKNOWN, f"{image} is not there yet", "it is pulled when a job first needs it")
