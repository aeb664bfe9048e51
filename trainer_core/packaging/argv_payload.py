"""Render a packaged function as the command of a container, byte for byte and without a shell.

``python3 -c`` runs `node/unpack.py`, which unpacks the rest from its arguments: the files of `node`, the function, and
the packages to install. No mount and no change of the image is needed. The files that all jobs share take about 36 KB,
47 KB as the text of the arguments.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import shlex
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.base.secrets import has_credentials
from trainer_core.model.request import Code
from trainer_core.node import launch as launching
from trainer_core.packaging import serializer

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
_ATTENDANT_FILE = "attendant.py"
_INDENT = re.compile("^ +", re.MULTILINE)
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
    is_attended: bool = False,
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
    if not is_attended:
        left_out.add(_ATTENDANT_FILE)
    if not (s3 or "s3://" in payload):
        left_out.update(_S3_FILES)
    files = {**_read_node_kit(frozenset(left_out)), launching.PAYLOAD: payload, launching.PACKAGES: settings}
    joined = _SEPARATOR.join(part for file in files.items() for part in file)  # path, content, path, content, …
    text = base64.b64encode(zlib.compress(joined.encode(), 9)).decode("ascii")
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


def find_payload(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the packaged function of a container in a manifest; None without one."""
    for words in _list_arguments(manifest):
        with suppress(ValueError, KeyError, zlib.error):
            compressed = base64.b64decode("".join(words[1:]), validate=True)
            parts = zlib.decompress(compressed).decode().split(_SEPARATOR)
            files = dict(zip(parts[::2], parts[1::2], strict=True))
            payload: dict[str, Any] = json.loads(files[launching.PAYLOAD])
            return payload
    return None


def _list_arguments(data: Any) -> Iterator[list[str]]:
    """Yield the lists of strings, and what a string has that begins as the arguments of `render_argv` do."""
    if isinstance(data, Mapping):
        data = list(data.values())
    elif isinstance(data, str) and data.partition(" ")[0] in get_args(Launcher):
        yield shlex.split(data)
    if isinstance(data, list):
        if data and all(isinstance(each, str) for each in data) and data[0] in get_args(Launcher):
            yield data
        for each in data:
            yield from _list_arguments(each)


@cache
def _read_node_kit(left_out: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the files that every node needs, without some: text by path."""
    return {path: text for path, text in _strip_node_kit() if Path(path).name not in {_UNPACKER, *left_out}}


@cache
def _strip_node_kit() -> list[tuple[str, str]]:
    kit = {path: _strip(text) for path, text in serializer.shipped_files().items()}
    # The order by size compresses better than that by name, and files that resemble each other compress best together.
    return sorted(kit.items(), key=lambda item: ("checkpoint" not in item[0], len(item[1]), item[0]))


def _strip(text: str) -> str:
    """Return a program without comments, docstrings, and types of functions and attributes, indented by one space.

    They are cut out of the text: what Python 3.12 writes from a tree, Python 3.11 cannot read. The numbers of the other
    lines stay the same.
    """
    lines, nodes = text.splitlines(), list(ast.walk(ast.parse(text)))
    # From the end, so that the columns of what is before stay the same. The files are ASCII: a column is a byte.
    for row, first, last in sorted([*_find_comments(nodes, lines), *_find_types(nodes, lines)], reverse=True):
        lines[row] = lines[row][:first].rstrip() + lines[row][last:]
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            docstring = node.body[0]
            # A body may consist of its docstring alone.
            empty = " " * docstring.col_offset + '""'
            count = (docstring.end_lineno or 0) - docstring.lineno
            lines[docstring.lineno - 1 : docstring.end_lineno] = [empty, *[""] * count]
    return _INDENT.sub(lambda match: " " * (len(match[0]) // 4), "\n".join(lines) + "\n")


def _find_comments(nodes: Sequence[ast.AST], lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield row, first and last column of the comments. A tokenizer needs twice the time of the parser."""
    strings = defaultdict(list)  # First and last column of the strings on a row.
    for node in nodes:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))):
            first_row, last_row = node.lineno - 1, (node.end_lineno or 0) - 1
            for row in range(first_row, last_row + 1):
                first = node.col_offset if row == first_row else 0
                last = node.end_col_offset or 0 if row == last_row else len(lines[row])
                strings[row].append((first, last))
    for row, line in enumerate(lines):
        for mark in re.finditer("#", line):
            if not any(first <= mark.start() < last for first, last in strings[row]):
                yield row, mark.start(), len(line)
                break


def _find_types(nodes: Sequence[ast.AST], lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield row, first and last column of the types of functions and attributes, each of which is on one line."""
    for node in nodes:
        if isinstance(node, ast.arg) and node.annotation:
            yield node.lineno - 1, node.col_offset + len(node.arg), node.annotation.end_col_offset or 0
        elif isinstance(node, ast.FunctionDef) and node.returns:
            row = node.returns.lineno - 1
            yield row, lines[row].rindex(" ->", 0, node.returns.col_offset), node.returns.end_col_offset or 0
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and node.value:
            yield node.lineno - 1, node.target.end_col_offset or 0, node.annotation.end_col_offset or 0


def _check_index_urls(urls: Sequence[str]) -> None:
    for index, url in enumerate(urls):
        if has_credentials(url):
            raise InvalidRequestError(
                f"trainer.pip_index_urls[{index}] contains a user or password, which would be readable in the "
                "job; put the URL into a Secret and use env={'PIP_INDEX_URL': SecretRef(name, key)}"
            )
