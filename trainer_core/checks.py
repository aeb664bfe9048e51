"""Checks of single values that several constructors share.

Each raises plain `ValueError` with one line that says what was wrong, where, and what to do. Values of environment
variables and credentials never appear in a message.

A text that holds a brace stands for a value that is not known yet: orchestrators fill such places in after the
constructor has run, and `TrainJobRequest.parse` judges the result. Hence `is_placeholder`; nothing here reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = [
    "check_annotations",
    "check_count",
    "check_env",
    "check_fraction",
    "check_index_urls",
    "check_labels",
    "check_mapping",
    "check_object_name",
    "check_one_of",
    "check_packages",
    "check_result_uri",
    "check_text",
    "check_texts",
    "each_problem",
    "is_namespace",
    "is_object_name",
    "is_placeholder",
    "known_fields",
    "one_line",
]

#: Counts are int32 on the wire (specs.md A2).
_MAX_COUNT = 2**31 - 1
_MAX_ANNOTATIONS_BYTES = 256 * 1024
_INDEX_URL = re.compile(r"(https?|file)://\S+")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
#: Whose values are not shown: they may be secrets, or were meant to be one by reference.
_UNSHOWN = frozenset({"env", "environment", "secrets"})
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OBJECT_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_object_name(value: object) -> bool:
    """Say whether a value can name an object of a cluster: 253 lower-case letters, digits, ``-`` and ``.`` at most."""
    return isinstance(value, str) and _OBJECT_NAME.fullmatch(value) is not None


def is_namespace(value: object) -> bool:
    """Say whether a value can name a namespace: 63 lower-case letters, digits and ``-`` at most."""
    return isinstance(value, str) and _NAMESPACE.fullmatch(value) is not None


def is_placeholder(value: object) -> bool:
    """Say whether a value is a text that an orchestrator has yet to fill in."""
    return isinstance(value, str) and "{" in value


def check_count(what: str, value: object, minimum: int = 1) -> None:
    """Refuse what is not a whole number of at least `minimum`; None and texts pass, to be judged later.

    Raises:
        ValueError: Too small, too large, a bool, or no whole number.
    """
    if value is None or isinstance(value, str):
        return
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _MAX_COUNT:
        raise ValueError(f"{what} must be a whole number of at least {minimum}, got {value!r}")


def check_fraction(what: str, value: object) -> None:
    """Refuse what is not a number from 0 to 1; None and texts pass, to be judged later.

    Raises:
        ValueError: Outside of that, a bool, or no number.
    """
    if value is None or isinstance(value, str):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{what} must be a number from 0 to 1, got {value!r}")


def check_text(what: str, value: object, example: str) -> None:
    """Refuse what is not a text with something in it.

    Raises:
        ValueError: Not a text, blank, or with a NUL character.
    """
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{what} must be a non-empty text such as {example!r}, got {_shown(value)}")


def check_texts(what: str, values: object, example: str) -> None:
    """Refuse what is not a list of texts; None passes. A single text is refused: it would be read letter by letter.

    Raises:
        ValueError: Not a list, or one entry is no text.
    """
    if values is None:
        return
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise ValueError(f"{what} must be a list of texts such as [{example!r}], got {_shown(values)}")
    for index, value in enumerate(values):
        check_text(f"{what}[{index}]", value, example)


def check_mapping(what: str, value: object, example: str) -> None:
    """Refuse what is not a dict with texts as keys; None passes.

    Raises:
        ValueError: Not a dict, or a key is no text.
    """
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a dict such as {example}, got {type(value).__name__}")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{what} must have texts as keys, got {key!r}; write a dict such as {example}")


def check_one_of(what: str, value: object, known: Sequence[str]) -> None:
    """Refuse a value that is not among the known ones.

    Raises:
        ValueError: It is not; the message names those that are.
    """
    if value not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}; got {value!r}")


def check_object_name(what: str, value: object) -> None:
    """Refuse what cannot name an object of a cluster, such as a queue; a name to be filled in passes.

    Raises:
        ValueError: It cannot.
    """
    if not is_object_name(value) and not is_placeholder(value):
        raise ValueError(
            f"{what} must be a name of at most 253 lower-case letters, digits, '-' and '.', got {_shown(value)}"
        )


def check_env(what: str, env: object) -> None:
    """Refuse environment variables that no process could be given; None passes.

    Raises:
        ValueError: A name is not one, or a value is no text.
    """
    check_mapping(what, env, "{'LOG_LEVEL': 'debug'}")
    for name, value in env.items() if isinstance(env, Mapping) else ():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{what} name {name!r} is not a variable name: use letters, digits, '_', '-' and '.'")
        if not isinstance(value, str):
            raise ValueError(f"{what}[{name!r}] must be a text, got {type(value).__name__}; put it in quotes")
        if "\0" in value or not _encodable(value):
            raise ValueError(
                f"{what}[{name!r}] holds a character that no environment can carry, such as NUL; remove it"
            )


def check_packages(what: str, packages: object) -> None:
    """Refuse what pip would not take for a package; None passes.

    Raises:
        ValueError: Not a list of texts, or one that pip would read as an option.
    """
    check_texts(what, packages, "scikit-learn>=1.5")
    for package in packages if isinstance(packages, (list, tuple)) else ():
        # `-r` reads files and `--index-url` asks another server.
        if package.lstrip().startswith("-") or package.splitlines() != [package]:
            raise ValueError(f"{what}: {package!r} is not a package; write one such as 'scikit-learn>=1.5'")


def check_index_urls(what: str, urls: object) -> None:
    """Refuse what is no URL; those to be filled in pass; None passes.

    Raises:
        ValueError: Not a list of URLs.
    """
    check_texts(what, urls, "https://packages.example.com/simple")
    for index, url in enumerate(urls if isinstance(urls, (list, tuple)) else ()):
        if not _INDEX_URL.fullmatch(url) and not is_placeholder(url):
            # Not shown: an index URL may carry a password.
            raise ValueError(f"{what}[{index}] is not a URL; write one such as 'https://packages.example.com/simple'")


def check_result_uri(what: str, value: object) -> None:
    """Refuse a place that no training can write to by itself; one to be filled in passes; None passes.

    Raises:
        ValueError: It is neither a path nor a ``file://`` URI of one.
    """
    if value is None or is_placeholder(value):
        return
    check_text(what, value, "file:///data/result.json")
    scheme, found, rest = str(value).partition("://")
    if found and (scheme != "file" or not rest.startswith(("/", "localhost/"))):
        raise ValueError(
            f"{what} must be a path, or 'file://' and an absolute path, got {_shown(value)}; give a path on storage "
            "that is mounted where the training runs"
        )


def check_labels(what: str, labels: object) -> None:
    """Refuse what Kubernetes would not take as labels; values to be filled in pass; None passes.

    Raises:
        ValueError: A key or value breaks the syntax of labels.
    """
    check_mapping(what, labels, "{'team': 'vision'}")
    for key, value in labels.items() if isinstance(labels, Mapping) else ():
        _check_label_key(what, key)
        if is_placeholder(value):
            continue
        if not isinstance(value, str) or (value and not _LABEL_NAME.fullmatch(value)):
            raise ValueError(
                f"{what}[{key!r}] must be a text of at most 63 letters, digits, '-', '_' and '.', with a letter or "
                f"digit at both ends, got {value!r}"
            )


def check_annotations(what: str, annotations: object) -> None:
    """Refuse what Kubernetes would not take as annotations; None passes.

    Raises:
        ValueError: A key breaks the syntax, a value is no text, or together they are over 256 KiB.
    """
    check_mapping(what, annotations, "{'note': 'any text'}")
    size = 0
    for key, value in annotations.items() if isinstance(annotations, Mapping) else ():
        _check_label_key(what, key)
        if not isinstance(value, str) or not _encodable(value):
            raise ValueError(f"{what}[{key!r}] must be a text, got {_shown(value)}; put it in quotes")
        size += len(key.encode()) + len(value.encode())
    if size > _MAX_ANNOTATIONS_BYTES:
        raise ValueError(f"{what} are {size} bytes together; keep them within {_MAX_ANNOTATIONS_BYTES}")


def known_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data as keyword arguments of a dataclass.

    Raises:
        ValueError: Not a dict, or a key is not a field; the message names those that are.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} must be a dict of its fields, got {type(data).__name__}")
    known = [item.name for item in fields(kind) if item.init]
    unknown = [str(name) for name in data if name not in known]
    if unknown:
        raise ValueError(f"unknown field {', '.join(unknown)} of {kind.__name__}; known are {', '.join(known)}")
    return dict(data)


def one_line(error: ValidationError) -> str:
    """Return pydantic's report as one line: ``trainer.num_nodes: input should be greater than 0, got -1``."""
    return "; ".join(text for _, text in each_problem(error))


def each_problem(error: ValidationError) -> list[tuple[tuple[str, ...], str]]:
    """Return what pydantic reports, one by one: the path of the value, and what is wrong with it."""
    found = []
    for item in error.errors(include_url=False):
        path = tuple(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        shown = repr(item["input"]) if isinstance(item["input"], (str, int, float, bool)) else ""
        # Nor is what stands in a field that there is not: a misspelt one may be that of a secret.
        hidden = item["type"] == "extra_forbidden" or not _UNSHOWN.isdisjoint(path)
        got = f", got {shown}" if shown and not hidden and shown not in message else ""
        found.append((path, f"{'.'.join(path)}: {message}{got}" if path else message))
    return found


def _check_label_key(what: str, key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (slash and not is_object_name(prefix)):
        raise ValueError(
            f"{what} key {key!r} is not a label key: write name or domain.example/name, the name with at most 63 "
            "letters, digits, '-', '_' and '.'"
        )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """A value as it stands in a message: short, and of a container only its type."""
    return repr(value)[:120] if isinstance(value, (str, int, float, type(None))) else type(value).__name__
