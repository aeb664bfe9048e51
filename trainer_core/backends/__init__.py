"""The backends. Their modules are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend


def backend_class(name: str) -> type[Backend]:
    """Return the class of a backend. Does not load its client library.

    Raises:
        ValueError: No backend has this name.
        BackendUnavailableError: It belongs to another distribution, and cannot be loaded.
    """
    # Not for a supervisor, which uses the modules of its backend only.
    from trainer_core.backends.base import Backend
    from trainer_core.model.backend_names import load_class
    from trainer_core.model.config import config_class

    reference = getattr(config_class(name), "implementation", "")
    return load_class(name, reference, Backend, "name")  # type: ignore[type-abstract]  # It is not called here.
