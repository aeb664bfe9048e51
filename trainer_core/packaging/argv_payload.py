"""Render a packaged function as the command of a container, byte for byte and without a shell.

``python3 -c`` runs `node/unpack.py`, which unpacks the rest from its arguments: the files of `node`, the function, and
the packages to install. No mount and no change of the image is needed. The files that all jobs share take about 28 KB,
37 KB as the text of the arguments.
"""

from __future__ import annotations

import ast
import base64
import json
import zlib
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.node import launch as launching
from trainer_core.packaging import serializer
from trainer_core.request import Code
from trainer_core.secrets import has_credentials

#: What starts the processes of a node.
Launcher: TypeAlias = Literal["torchrun", "python", "mpirun"]

#: The program of ``python3 -c``.
UNPACKER = Path(__file__).parents[1].joinpath("node", "unpack.py").read_text(encoding="ascii")
#: Between the paths and contents of files, which do not contain it.
_SEPARATOR = "\0"
#: Characters per argument: Trainer 2.2 accepts 65,536, Linux 131,072.
_CHUNK_LENGTH = 60_000
#: Characters of all arguments: etcd accepts objects of 1.5 MB.
_MAX_LENGTH = 1_000_000
#: Not unpacked: it is the program of the command.
_UNPACKER = "unpack.py"
_S3_FILES = ("checkpoint_s3.py", "s3_client.py")
_FETCH_FILE = "project_fetch.py"
_OBJECTIVE_FILE = "objective.py"
_HOSTFILE = "/etc/mpi/hostfile"


def render_argv(
    code: Code,
    packages: Sequence[str] = (),
    pip_index_urls: Sequence[str] = (),
    launch: Launcher = "python",
    exported: Sequence[str] = (),
    processes: int | None = None,
    s3: bool = False,
    is_trial: bool = False,
) -> list[str]:
    """Return the command of a container that runs a function; equal functions give equal commands.

    ``def train(): ...`` → ``["python3", "-c", "<text of unpack.py>", "python", "eNrtvXt32zi2J/r/fAqM..."]``
    """
    _check_index_urls(pip_index_urls)
    # Sorted keys: requests with another key order are equal and must give equal arguments.
    payload = json.dumps(json.loads(serializer.payload(code.model_dump())), sort_keys=True)
    settings = json.dumps({"packages": list(packages), "index_urls": list(pip_index_urls), "processes": processes})
    uri = code.project.uri if code.project else None
    left_out = set() if uri else {_FETCH_FILE}
    if not is_trial:
        left_out.add(_OBJECTIVE_FILE)
    if not (s3 or (uri or "").startswith("s3://")):
        left_out.update(_S3_FILES)
    files = {**_read_node_kit(frozenset(left_out)), launching.PAYLOAD: payload, launching.PACKAGES: settings}
    text = base64.b64encode(zlib.compress(_SEPARATOR.join(chain(*files.items())).encode(), 9)).decode("ascii")
    if len(text) > _MAX_LENGTH:
        raise UnsupportedError(
            f"trainer.code: {code.entry} and its arguments take {len(text)} characters of container arguments; "
            f"use at most {_MAX_LENGTH}: pass data as a dataset, and install code in the image"
        )
    chunks = [text[start : start + _CHUNK_LENGTH] for start in range(0, len(text), _CHUNK_LENGTH)]
    if launch != "mpirun":
        return ["python3", "-c", UNPACKER, launch, *chunks]
    names = [part for name in exported for part in ("-x", name)]
    return ["mpirun", "--hostfile", _HOSTFILE, *names, "python3", "-c", UNPACKER, "python", *chunks]


@cache
def _read_node_kit(left_out: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the files that every node needs, without some: text by path."""
    kit = {path: _strip(text) for path, text in serializer.shipped_files().items()}
    # The order by size compresses better than that by name, and files that resemble each other compress best together.
    ordered = sorted(kit.items(), key=lambda item: ("checkpoint" not in item[0], len(item[1]), item[0]))
    return {path: text for path, text in ordered if Path(path).name not in {_UNPACKER, *left_out}}


def _strip(text: str) -> str:
    """Return a program without comments, docstrings, and the types of arguments and results."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)


def _check_index_urls(urls: Sequence[str]) -> None:
    for index, url in enumerate(urls):
        if has_credentials(url):
            raise InvalidRequestError(
                f"trainer.pip_index_urls[{index}] contains a user or password, which would be readable in the "
                "job; put the URL into a Secret and use env={'PIP_INDEX_URL': SecretRef(name, key)}"
            )
