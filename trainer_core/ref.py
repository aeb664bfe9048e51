"""TrainJobRef: all that a later process needs to find a TrainJob again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["TrainJobRef"]

_VERSION = 1


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
    def from_dict(cls, data: dict[str, Any]) -> TrainJobRef:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: Not a ref, or one written by a newer version.
        """
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise ValueError(f"not a TrainJob ref of version {_VERSION}: {str(data)[:120]!r}; pass what submit returned")
        fields = {key: data.get(key) for key in ("backend", "namespace", "name", "uid")}
        wrong = sorted(key for key, value in fields.items() if not isinstance(value, str) or not value)
        if wrong:
            raise ValueError(f"the TrainJob ref lacks {', '.join(wrong)}: {str(data)[:120]!r}; pass what submit returned")
        return cls(**{key: str(value) for key, value in fields.items()})

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
