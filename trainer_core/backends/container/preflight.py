"""Checks of `trainjob doctor` for a container engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.backends.container.engine import PODMAN, ConnectionAttempt, Engine, check_library, find_engine
from trainer_core.backends.container.runtimes import RuntimeCatalog
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.secrets import mask_credentials
from trainer_core.model.config import ContainerBackendConfig
from trainer_core.model.preflight import LIMITED, MISSING, OK, UNKNOWN, PreflightCheck, PreflightReport

#: Docker 20.10 and Podman 4.
_MIN_API_VERSION = (1, 41)


def check_engine(config: ContainerBackendConfig) -> PreflightReport:
    """Check what the container backend needs from an engine. Creates nothing."""
    try:
        check_library()
    except BackendUnavailableError as error:
        return PreflightReport((PreflightCheck("docker library", MISSING, str(error)),))
    engine, attempts = find_engine(config)
    checks = tuple(_report_attempt(each, each is attempts[-1] and engine is not None) for each in attempts)
    if engine is None:
        advice = "start Docker or Podman, or set DOCKER_HOST"
        return PreflightReport((*checks, PreflightCheck("engine", MISSING, "no engine answers", advice)))
    try:
        return PreflightReport((*checks, *_check_features(engine), *_check_images(engine, config)))
    except BackendUnavailableError as error:
        return PreflightReport((*checks, PreflightCheck("engine", MISSING, str(error))))
    finally:
        engine.close()


def _report_attempt(attempt: ConnectionAttempt, is_used: bool) -> PreflightCheck:
    found = mask_credentials(f"{attempt.candidate.address}: {attempt.result}")
    # An address that does not answer is no problem if a later one does.
    return PreflightCheck(attempt.candidate.source, OK if is_used else UNKNOWN, found)


def _check_features(engine: Engine) -> Iterator[PreflightCheck]:
    version = engine.api_version or "0"
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_API_VERSION:
        minimum = ".".join(map(str, _MIN_API_VERSION))
        yield PreflightCheck("API", MISSING, version, f"needs {minimum}; upgrade the engine")
    else:
        yield PreflightCheck("API", OK, version)
    info = engine.get_info()
    if info.get("MemoryLimit") is False:
        yield PreflightCheck(
            "limits", LIMITED, "the engine does not limit memory", "memory in resources_per_node has no effect"
        )
    if not engine.is_local:
        yield PreflightCheck("machine", LIMITED, "the engine runs on another machine", "file:// sources are refused")
    yield _check_gpu(engine, info)


def _check_gpu(engine: Engine, info: Mapping[str, Any]) -> PreflightCheck:
    if engine.product == PODMAN:
        advice = (
            'jobs with gpu in resources_per_node are refused; devices = ["nvidia.com/gpu=all"] in containers.conf '
            "gives all containers access"
        )
        return PreflightCheck("gpu", LIMITED, "Podman ignores GPU requests of the Docker API", advice)
    if "nvidia" in (info.get("Runtimes") or {}) or info.get("CDISpecDirs"):
        return PreflightCheck("gpu", OK, "available to containers")
    advice = "jobs with gpu in resources_per_node fail; install nvidia-container-toolkit"
    return PreflightCheck("gpu", LIMITED, "no NVIDIA runtime is configured", advice)


def _check_images(engine: Engine, config: ContainerBackendConfig) -> Iterator[PreflightCheck]:
    for role in ("dataset", "model"):
        image = getattr(config, f"{role}_initializer_image")
        yield _check_image(engine, f"image of the {role} initializer", image, config.pull_policy)
    for runtime in RuntimeCatalog(config.runtime_source.sources).list():
        yield _check_image(engine, f"runtime {runtime.name}", runtime.trainer.image, config.pull_policy)


def _check_image(engine: Engine, what: str, image: str, pull_policy: str) -> PreflightCheck:
    if engine.has_image(image):
        return PreflightCheck(what, OK, image)
    if pull_policy == "Never":
        return PreflightCheck(what, LIMITED, f"{image} is missing", "pull_policy is Never; pull the image yourself")
    return PreflightCheck(what, UNKNOWN, f"{image} is missing", "the first job that needs it pulls it")
