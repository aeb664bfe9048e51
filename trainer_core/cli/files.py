"""A YAML file that is named on the command line, or piped in → its documents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from trainer_core.errors import InvalidRequestError

__all__ = ["documents"]


def documents(path: str) -> list[Any]:
    """Return the documents of a file or, for ``-``, of standard input; empty ones are left out.

    Raises:
        InvalidRequestError: It cannot be read, or is no YAML.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except FileNotFoundError as error:
        raise InvalidRequestError(
            f"{path} cannot be read: there is no file {Path(path).absolute()}; give the path of a YAML file, or - for "
            "standard input"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
