"""A request as one argument of a container, byte for byte.

Argo expands ``{{…}}`` in a constant of a KFP task, the kubelet expands ``$$`` and ``$(NAME)`` in two pods, numbers
become doubles, and KFP's connection to MySQL refuses characters of four bytes in UTF-8, such as emoji. In base64 a
request passes through all of them unchanged, and JSON escapes nothing in it.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any

from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError

#: Bytes of a request: a few kilobytes of base64 can hold gigabytes.
_MAX_LENGTH = 50_000_000
#: The last character of at most three bytes in UTF-8.
_LAST_OF_THREE_BYTES = "\uffff"
#: Whole numbers beyond this lose digits as doubles.
_MAX_INTEGER = 2**53


def encode_request(request: Mapping[str, Any]) -> str:
    """Return a request in base64; equal requests have equal encodings."""
    text = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def decode_request(text: str) -> dict[str, Any]:
    """Read what `encode_request` wrote."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), _MAX_LENGTH)
        if unpacker.unconsumed_tail:
            raise ValueError(f"more than {_MAX_LENGTH} bytes")
        request = validation.parse_json("it", data)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise InvalidRequestError(
            f"--request is damaged ({error}); compile the pipeline again with the version of the image"
        ) from error
    if not isinstance(request, dict):
        raise InvalidRequestError("--request is not a JSON object; compile the pipeline again")
    return request


def can_pass_as_parameter(request: Mapping[str, Any]) -> bool:
    """Whether a request arrives unchanged as a constant of a KFP task, where it can be read in the compiled YAML."""
    text = json.dumps(request, ensure_ascii=False)
    changes = any(mark in text for mark in ("$$", "$(", "{{")) or not can_store(text)
    return not changes and not _has_large_number(request)


def can_store(text: str) -> bool:
    """Whether KFP's database takes a text: a run with any other ends with status 500 when it is created."""
    return max(text, default="") <= _LAST_OF_THREE_BYTES


def _has_large_number(value: Any) -> bool:
    return any(isinstance(leaf, int) and abs(leaf) > _MAX_INTEGER for leaf in validation.iterate_leaves(value))
