"""The base class of options: checks that the backend accepts the option, then changes the job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar


def section(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one section of a job, created if it is absent."""
    found: dict[str, Any] = data.setdefault(name, {})
    return found


def get_backend_class(backend: Any) -> type[Any]:
    """Return the class of a backend, which may be given itself. For a ``Mock(spec=KubernetesBackend)``, its spec."""
    kind: type[Any] = backend if isinstance(backend, type) else backend.__class__
    return kind


def check_accepted(names: Sequence[str], home: str, backend: Any) -> None:
    """Check that a backend accepts an option by its name or that of a base class; `home` is one that does."""
    kind = get_backend_class(backend)
    accepted: frozenset[str] = getattr(kind, "accepts", frozenset())
    if accepted.isdisjoint(names):
        raise ValueError(
            f"{names[0]} option is not compatible with {kind.__name__}. Supported backends: {home} and every other "
            f"that accepts {names[0]}; {kind.__name__} accepts {', '.join(sorted(accepted)) or 'no options'}. "
            f"In a definition for several backends, OnBackend gives {names[0]} to one of them"
        )


class BaseOption(ABC):
    """A callable that changes a TrainJob before it is submitted.

    Any callable with the same arguments can be an option; this class also checks that the backend accepts it.
    """

    #: A backend that accepts the option, for the error message.
    home_backend: ClassVar[str] = "KubernetesBackend"

    def __call__(self, job_spec: dict[str, Any], trainer: Any, backend: Any) -> None:
        """Write this option into a job.

        Args:
            job_spec: The job in the shape of a TrainJob, ``{"metadata": …, "spec": …}``; changed in place.
            trainer: What the job runs.
            backend: The backend for which the job is built, or its class. None: not known yet, and not checked.

        Raises:
            ValueError: The backend does not accept this option, or the option does not fit the trainer.
        """
        if backend is not None:
            check_accepted([kind.__name__ for kind in type(self).__mro__], self.home_backend, backend)
        self._apply(job_spec, trainer)

    @abstractmethod
    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        """Write the option into the job; the backend accepts it."""
