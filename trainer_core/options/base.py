"""What all options have in common: whether a backend accepts them is asked here, once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend
    from trainer_core.trainers import BuiltinTrainer, CustomTrainer, CustomTrainerContainer

    AnyTrainer: TypeAlias = CustomTrainer | CustomTrainerContainer | BuiltinTrainer | None

__all__ = ["BaseOption", "section"]


def section(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one part of a job, which is made where it is absent."""
    found: dict[str, Any] = data.setdefault(name, {})
    return found


class BaseOption(ABC):
    """A small callable that changes a job before it is submitted.

    Any callable of the same arguments can serve as an option; this one asks the backend first.
    """

    #: A backend that accepts it.
    _home: ClassVar[str] = "KubernetesBackend"

    def __call__(self, job_spec: dict[str, Any], trainer: AnyTrainer, backend: type[Backend] | Backend) -> None:
        """Write this option into a job.

        Args:
            job_spec: The job in the shape of a TrainJob, ``{"metadata": …, "spec": …}``; changed in place.
            trainer: What the job runs.
            backend: Where it is meant to run; its class is enough.

        Raises:
            ValueError: The backend does not accept this option, or it does not go with the trainer.
        """
        self._check_backend(backend)
        self._apply(job_spec, trainer)

    @abstractmethod
    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        """Write into the job; the backend has been asked."""

    def _check_backend(self, backend: type[Backend] | Backend) -> None:
        accepted: frozenset[str] = getattr(backend, "accepts", frozenset())
        # An option derived from a known one is accepted where that one is.
        if accepted.isdisjoint(kind.__name__ for kind in type(self).__mro__):
            option = type(self).__name__
            name = (backend if isinstance(backend, type) else type(backend)).__name__
            raise ValueError(
                f"{option} option is not compatible with {name}. Supported backends: {self._home} and every other "
                f"that accepts {option}; {name} accepts {', '.join(sorted(accepted)) or 'no options'}"
            )
