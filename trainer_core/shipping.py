"""A packaged function becomes the command of a container, byte for byte and without a shell.

Python reads `inside/loader.py` from its arguments, and that reads all the rest from the arguments behind it: the files
of `inside` that a node needs, the function, and the packages to install. Nothing has to be mounted or built into the
image. What all jobs have in common takes 20 KB of the arguments; the function and its own arguments come on top.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from trainer_core import packaging
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.inside import launch as launching
from trainer_core.request import Code

__all__ = ["LOADER", "argv"]

#: The program of ``python3 -c``.
LOADER = Path(__file__).with_name("inside").joinpath("loader.py").read_text(encoding="ascii")
#: Characters of one argument: Trainer 2.2 takes 65,536, Linux 131,072.
_CHUNK = 60_000
#: Characters of all: a cluster's store takes objects of 1.5 MB.
_MOST = 1_000_000
#: The file of `inside` that is the program of the command, not what it unpacks.
_LOADER = "loader.py"
_HOSTFILE = "/etc/mpi/hostfile"


def argv(
    code: Code,
    packages: Sequence[str] = (),
    pip_index_urls: Sequence[str] = (),
    launch: Literal["torchrun", "python", "mpirun"] = "python",
    exported: Sequence[str] = (),
    processes: int | None = None,
) -> list[str]:
    """Return the command of a container that runs a function; equal functions, equal commands.

    Args:
        code: The function.
        packages: What pip installs first, once in each container.
        pip_index_urls: Where from: the first is the index, the others are extra ones. None: as pip is configured.
        launch: ``torchrun`` as the controller's PET_* variables say, which is one plain process where torch is not
            installed; ``python`` for one process; ``mpirun`` for one on each slot of Trainer's hostfile.
        exported: With ``mpirun``, names of the environment variables that the processes get.
        processes: How many the user wants on each node; where torch is not installed, more than one are refused.

    Returns:
        Everything up to `LOADER` is the command, what follows are its arguments.

    Raises:
        InvalidRequestError: An index URL holds a user or password.
        UnsupportedError: The function is too large.
    """
    _check_index_urls(pip_index_urls)
    # Keys in order: the request, of which this is made, is equal whatever the order of its keys.
    payload = json.dumps(json.loads(packaging.payload(code.model_dump())), sort_keys=True)
    wanted = json.dumps({"packages": list(packages), "index_urls": list(pip_index_urls), "processes": processes})
    files = {**_kit(), launching.PAYLOAD: payload, launching.PACKAGES: wanted}
    text = base64.b64encode(zlib.compress(json.dumps(files).encode(), 9)).decode("ascii")
    if len(text) > _MOST:
        raise UnsupportedError(
            f"trainer.code: {code.entry} and its arguments take {len(text)} characters of a container's arguments, "
            f"{_MOST} at most; put data into a dataset and code into the image"
        )
    chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    if launch != "mpirun":
        return ["python3", "-c", LOADER, launch, *chunks]
    names = [part for name in exported for part in ("-x", name)]
    return ["mpirun", "--hostfile", _HOSTFILE, *names, "python3", "-c", LOADER, "python", *chunks]


@cache
def _kit() -> dict[str, str]:
    """What every node needs: text by path."""
    return {path: text for path, text in packaging.shipped_files().items() if Path(path).name != _LOADER}


def _check_index_urls(urls: Sequence[str]) -> None:
    for index, url in enumerate(urls):
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise InvalidRequestError(
                f"trainer.pip_index_urls[{index}] holds a user or password, which would be readable in the job's "
                "description; put the URL into a Secret and give env={'PIP_INDEX_URL': SecretRef(name, key)}"
            )
