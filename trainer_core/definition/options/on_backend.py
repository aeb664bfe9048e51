"""OnBackend: options and trainer fields for one backend, in a definition that is used on several."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_core.base import resources, validation
from trainer_core.base.secrets import redact
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.model.backend_names import is_backend, list_backends
from trainer_core.model.option import BaseOption, get_backend_class, section
from trainer_core.model.runtimes import Runtime
from trainer_core.packaging.requirements_file import is_requirements_file

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

_log = logging.getLogger(__name__)


@dataclass(init=False)
class OnBackend(BaseOption):
    """Apply options, and replace the image, runtime, resources or packages, on one backend only.

    On every other backend the option has no effect, and a line in the log names it. Every backend accepts it.

    As plain data: ``{"OnBackend": {"backend": "kubernetes", "options": [{"QueueName": "nightly"}], "image": …}}``.

    Args:
        backend: Name of the backend, such as ``"kubernetes"``.
        options: Options that apply on this backend, such as ``QueueName("nightly")``. The backend must accept them. The
            default is none.
        image: Container image, instead of the trainer's (``spec.trainer.image``). The default is the trainer's.
        runtime: Runtime or name of a runtime, instead of the job's (``spec.runtimeRef``). The default is the job's.
        resources_per_node: Kubernetes quantities by resource name, instead of the trainer's
            (``spec.trainer.resourcesPerNode``). The default is the trainer's.
        packages_to_install: Requirements that pip installs before the function runs, instead of the trainer's; an empty
            list installs none. The default is the trainer's.

    Raises:
        ValueError: No backend has this name, it is inside another `OnBackend`, or a value is invalid. When it is
            applied: the backend does not accept one of the options, or the trainer has no such field.

    Example:
        ```python
        portable = OnBackend("kubernetes", QueueName("nightly"), image="ghcr.io/team/train:1.0")
        client.train(trainer=trainer, options=[portable])
        ```
    """

    backend: str
    options: tuple[Callable[..., Any], ...]
    image: str | None
    runtime: str | Runtime | None
    resources_per_node: dict[str, Any] | None
    packages_to_install: list[str] | None

    def __init__(
        self,
        backend: str,
        *options: Callable[[dict[str, Any], Any, Any], None],
        image: str | None = None,
        runtime: str | Runtime | None = None,
        resources_per_node: dict[str, Any] | None = None,
        packages_to_install: list[str] | None = None,
    ) -> None:
        check_backend_name("OnBackend", backend)
        for option in options:
            if isinstance(option, OnBackend):
                raise ValueError(
                    f"OnBackend({redact(backend)}) contains another OnBackend; give them next to each other in options"
                )
            if not callable(option):
                raise ValueError(
                    f"OnBackend({redact(backend)}) takes options such as QueueName('nightly'), got {redact(option)}"
                )
        validation.check_image("OnBackend image", image)
        if runtime is not None and not isinstance(runtime, Runtime):
            validation.check_string("OnBackend runtime", runtime, "torch-distributed")
        resources.check_resources("OnBackend resources_per_node", resources_per_node)
        validation.check_packages("OnBackend packages_to_install", packages_to_install)
        if any(map(is_requirements_file, packages_to_install or ())):
            raise ValueError("OnBackend packages_to_install takes packages and no file; give the file to the trainer")
        self.backend = backend
        self.options = options
        self.image = image
        self.runtime = runtime
        self.resources_per_node = resources_per_node
        self.packages_to_install = packages_to_install

    def __call__(self, job_spec: dict[str, Any], trainer: Any, backend: type[Backend] | Backend | None) -> None:
        """Write this option into a job if the job is for its backend.

        Args:
            job_spec: The job in the shape of a TrainJob, ``{"metadata": …, "spec": …}``; changed in place.
            trainer: What the job runs.
            backend: The backend for which the job is built, or its class. None: not known yet, nothing is written.

        Raises:
            ValueError: The backend does not accept one of the options, or the trainer has no such field.
        """
        if backend is None:
            return
        name = getattr(get_backend_class(backend), "name", None)
        if name != self.backend:
            log_skipped(self.backend, str(name))
            return
        for option in self.options:
            option(job_spec, trainer, backend)
        self._apply(job_spec, trainer)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        spec = section(job_spec, "spec")
        if isinstance(self.runtime, Runtime):
            spec["runtimeRef"] = {"name": self.runtime.name, "kind": self.runtime.kind.value}
        elif self.runtime is not None:
            spec["runtimeRef"] = {"name": self.runtime}
        fields: dict[str, Any] = {}
        if self.image is not None:
            fields["image"] = self.image
        if self.resources_per_node is not None:
            fields["resources_per_node"] = dict(self.resources_per_node)
        if self.packages_to_install is not None:
            if not isinstance(trainer, CustomTrainer):
                raise ValueError(
                    f"OnBackend({redact(self.backend)}) packages_to_install needs a training function: "
                    "CustomTrainer(func=…)"
                )
            fields["packages"] = list(self.packages_to_install)
            fields["pip_index_urls"] = list(trainer.pip_index_urls) if self.packages_to_install else []
        if fields:
            if trainer is None:
                raise ValueError(
                    f"OnBackend({redact(self.backend)}) {', '.join(fields)}: the job has no trainer; give one"
                )
            section(spec, "trainer").update(fields)


def check_backend_name(what: str, name: object) -> None:
    """Refuse a name that no backend has."""
    if not is_backend(name):
        raise ValueError(f"{what} has the unknown backend {redact(name)}; known are {', '.join(list_backends())}")


def log_skipped(backend: str, used: str) -> None:
    """Write the line for an `OnBackend` that does not apply on the backend in use."""
    _log.info("OnBackend(%r) is skipped: the job is for the %s backend", backend, used)
