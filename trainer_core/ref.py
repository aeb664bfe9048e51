"""TrainJobRef: all that a later process needs to find a TrainJob again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["TrainJobRef"]

_VERSION = 1
_FIELDS = ("backend", "namespace", "name", "uid")


@dataclass(frozen=True)
class TrainJobRef:
    """Where one TrainJob is. Small and plain, so that it travels through XCom and KFP parameters.

    Attributes:
        backend: Name of the backend that runs it, such as ``"local"`` or ``"kubernetes"``.
        namespace: Where the backend keeps it: a Kubernetes namespace; for local processes the
            absolute path of the state folder.
        name: Name of the TrainJob, unique in its namespace at any one time.
        uid: Identity of this very job: a deleted and re-created job of the same name has another.
    """

    backend: str
    namespace: str
    name: str
    uid: str

    def to_dict(self) -> dict[str, Any]:
        """Return the ref as plain JSON data."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Any) -> TrainJobRef:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: Not a ref, or one written by a newer version.
        """
        shown = f"{str(data)[:120]!r}; pass what submit returned"
        given = dict(data) if isinstance(data, Mapping) else {}
        if given.get("version") != _VERSION:
            raise ValueError(f"not a TrainJob ref of version {_VERSION}: {shown}")
        texts = {key: given[key] for key in _FIELDS if isinstance(given.get(key), str) and given[key]}
        if len(texts) < len(_FIELDS):
            raise ValueError(f"the TrainJob ref lacks {', '.join(sorted(set(_FIELDS) - set(texts)))}: {shown}")
        return cls(**texts)

    def to_json(self) -> str:
        """Return the ref as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TrainJobRef:
        """Read what `to_json` wrote.

        Raises:
            ValueError: Not JSON, or not a ref.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a TrainJob ref: {text[:120]!r} is not JSON; pass what submit printed") from error
        return cls.from_dict(data)
