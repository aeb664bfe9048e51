"""Programs of images: what runs where a pod gives no command of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["INITIALIZER", "program"]

#: Plays Trainer's initializer images: says what it fetches, and leaves a file that holds the address.
INITIALIZER = """
import os, pathlib
role = "{role}"
folder = pathlib.Path(os.environ["TRAINJOB_" + role.upper() + "_PATH"])
folder.mkdir(parents=True, exist_ok=True)
print("Fetching", os.environ.get("STORAGE_URI", "nothing"))
(folder / "source.txt").write_text(os.environ.get("STORAGE_URI", ""))
"""


def program(images: Mapping[str, str], container: Mapping[str, Any]) -> Sequence[str]:
    """Return the entry point of a container's image.

    Args:
        images: Python source by a part of an image's name.
        container: The container.
    """
    image = container.get("image", "")
    for part, source in images.items():
        if part in image:
            return [sys.executable, "-c", source]
    for role in ("dataset", "model"):
        if f"{role}-initializer" in (container["name"], image.rpartition("/")[2].partition(":")[0]):
            return [sys.executable, "-c", INITIALIZER.format(role=role)]
    return ["true"]
