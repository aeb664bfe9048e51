"""What Argo and the kubelet do to the text of a pod's command, arguments and environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The longest argument of a program on Linux, in bytes.
MAX_ARGUMENT = 131_071

_EXPANDED = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")
_TEMPLATE = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text as the kubelet passes it on: ``$$`` is ``$``, and ``$(NAME)`` the value of a known variable."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return variables.get(found[1], found[0])

    return _EXPANDED.sub(value, text)


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with Argo's ``{{name}}`` replaced; names that Argo does not know stay."""
    return _TEMPLATE.sub(lambda found: variables.get(found[1], found[0]), text)
