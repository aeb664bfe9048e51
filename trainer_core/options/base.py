"""The base class of options: checks that the backend accepts the option, then changes the job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend
    from trainer_core.trainers import BuiltinTrainer, CustomTrainer, CustomTrainerContainer

    AnyTrainer: TypeAlias = CustomTrainer | CustomTrainerContainer | BuiltinTrainer | None

__all__ = ["BaseOption", "section"]


def section(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one section of a job, created if it is absent."""
    found: dict[str, Any] = data.setdefault(name, {})
    return found


class BaseOption(ABC):
    """A callable that changes a TrainJob before it is submitted.

    Any callable with the same arguments can be an option; this class also checks that the backend accepts it.
    """

    #: A backend that accepts the option, for the error message.
    _home: ClassVar[str] = "KubernetesBackend"

    def __call__(self, job_spec: dict[str, Any], trainer: AnyTrainer, backend: type[Backend] | Backend) -> None:
        """Write this option into a job.

        Args:
            job_spec: The job in the shape of a TrainJob, ``{"metadata": …, "spec": …}``; changed in place.
            trainer: What the job runs.
            backend: The backend for which the job is built, or its class.

        Raises:
            ValueError: The backend does not accept this option, or the option does not fit the trainer.
        """
        self._check_backend(backend)
        self._apply(job_spec, trainer)

    @abstractmethod
    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        """Write the option into the job; the backend accepts it."""

    def _check_backend(self, backend: type[Backend] | Backend) -> None:
        accepted: frozenset[str] = getattr(backend, "accepts", frozenset())
        # A subclass of an option is accepted where the option is.
        if accepted.isdisjoint(kind.__name__ for kind in type(self).__mro__):
            option = type(self).__name__
            name = (backend if isinstance(backend, type) else type(backend)).__name__
            raise ValueError(
                f"{option} option is not compatible with {name}. Supported backends: {self._home} and every other "
                f"that accepts {option}; {name} accepts {', '.join(sorted(accepted)) or 'no options'}"
            )
