"""Rules of ignore files as git reads them: byte by byte, by its documentation and its wildmatch."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

#: Character classes of git, as parts of those of regular expressions. Each is ASCII.
_CLASSES = dict(
    re.findall(
        r"(\w+)=(\S+)",
        r"alnum=0-9A-Za-z alpha=A-Za-z blank=\x20\t cntrl=\0-\x1f\x7f digit=0-9 graph=!-~ lower=a-z print=\x20-~ "
        r"punct=!-/:-@\[-`{-~ space=\x20\t\n\r upper=A-Z xdigit=0-9A-Fa-f",
    )
)
_BYTES = "".join(map(chr, range(256)))
#: What is between brackets: a class, or a character and perhaps the end of a range.
_ITEM = re.compile(r"\[:(?P<name>[^]]*):]|(?P<low>\\.|[^\\])(?:-(?P<high>\\.|[^]\\]))?", re.DOTALL)
#: A line without the spaces at its end that no backslash keeps.
_LINE = re.compile(r"(?: *(?:\\.|\\$|[^ \\]))*", re.DOTALL)
_STAR = "[^/]*"


class Rule(NamedTuple):
    """A line of an ignore file. A line that starts with ``!`` takes files back."""

    is_ignored: bool
    for_folders: bool
    #: Whether it is matched with the path below the folder of the file, and not with the name.
    for_paths: bool
    regex: re.Pattern[str]

    def applies_to(self, path: str, is_folder: bool) -> bool:
        text = os.fsencode(path if self.for_paths else path.rpartition("/")[2]).decode("latin-1")
        return (is_folder or not self.for_folders) and self.regex.fullmatch(text) is not None


def parse_rules(data: bytes) -> Iterator[Rule]:
    """Yield the rules of a file."""
    for raw in data.removeprefix(codecs.BOM_UTF8).decode("latin-1").split("\n"):
        found = _LINE.match(raw.removesuffix("\r"))
        line = found[0] if found else ""
        if line.startswith("#"):
            continue
        is_taken_back = line.startswith("!")
        pattern = line[is_taken_back:].removesuffix("/")
        regex = _translate(pattern.removeprefix("/"), "/" in pattern)
        if regex is not None:
            compiled = re.compile(_limit_backtracking(regex), re.DOTALL)
            yield Rule(not is_taken_back, line.endswith("/"), "/" in pattern, compiled)


def _translate(pattern: str, for_paths: bool) -> str | None:
    r"""Return the regular expression of a pattern; None if it matches nothing.

    ``**/a?`` → ``(?:.*/)?\x61[^/]``
    """
    # git compares what is before the first special character by itself: two stars behind it are at a start.
    start = len(re.split(r"[*?[\\]", pattern, maxsplit=1)[0])
    regex, at = "", 0
    while at < len(pattern):
        if pattern[at] == "*":
            end = len(pattern) - len(pattern[at:].lstrip("*"))
            is_deep = for_paths and end - at > 1 and (at == start or pattern[at - 1] == "/")
            is_deep = is_deep and re.match(r"\\?/|$", pattern[end:]) is not None
            skips = is_deep and pattern.startswith("/", end)
            regex, at = regex + ("(?:.*/)?" if skips else ".*" if is_deep else _STAR), end + skips
        elif pattern[at] == "[":
            found = _parse_set(pattern, at + 1)
            if found is None:
                return None
            regex, at = regex + found[0], found[1]
        elif pattern[at] == "?":
            regex, at = regex + "[^/]", at + 1
        else:
            at += pattern[at] == "\\"
            if at == len(pattern):
                return None
            regex, at = regex + _escape(pattern[at]), at + 1
    return regex


def _parse_set(pattern: str, at: int) -> tuple[str, int] | None:
    """Return the regular expression of what is between brackets, and where it ends; None if it matches nothing."""
    is_negated = pattern.startswith(("!", "^"), at)
    at, chars, is_first = at + is_negated, set[str](), True
    while is_first or not pattern.startswith("]", at):
        item, is_first = _ITEM.match(pattern, at), False
        if item is None or item["name"] not in (None, *_CLASSES):
            return None
        if item["name"]:
            chars.update(re.findall(f"[{_CLASSES[item['name']]}]", _BYTES))
        else:
            low, high = item["low"][-1], (item["high"] or item["low"])[-1]
            chars.update(low, map(chr, range(ord(low), ord(high) + 1)))
        at = item.end()
    members = "".join(_escape(each) for each in _BYTES if each != "/" and (each in chars) != is_negated)
    return f"[{members}]" if members else "(?!)", at + 1


def _escape(char: str) -> str:
    return char if char == "/" else f"\\x{ord(char):02x}"


def _limit_backtracking(regex: str) -> str:
    """Let each ``*`` but the last of a name match only the shortest text: ``*a*a*a*b`` else takes minutes."""
    start, *texts = regex.split(_STAR)
    limited = start
    for number, text in enumerate(texts):
        is_last = number + 1 == len(texts) or any(each in text.replace("[^/]", "") for each in "/(.")
        limited += f"{_STAR}{text}" if is_last else f"(?=(?P<star{number}>{_STAR}?{text}))(?P=star{number})"
    return limited
