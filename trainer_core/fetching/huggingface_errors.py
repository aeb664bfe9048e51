"""Errors of huggingface_hub → one line that says what to do, and whether a retry helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RevisionNotFoundError,
)

from trainer_core.fetching.source import FetchError

__all__ = ["FOREIGN", "explained", "is_away"]

#: What the library raises. The first is the base of the errors of its HTTP library, which is another one in each of
#: its major versions.
FOREIGN = cast(
    "tuple[type[Exception], ...]", (HfHubHTTPError.__bases__[0], HfHubHTTPError, EntryNotFoundError, OSError)
)
_QUERY = re.compile(r"\?[^\s'\"]+")
_TOKENS = "https://huggingface.co/settings/tokens"


def is_away(error: BaseException) -> bool:
    """Say whether the Hub may be back in a moment."""
    status = _status(error)
    if status is not None:
        return status >= 500
    # Of an entry that is not there, the library may say so without a status.
    return isinstance(error, FOREIGN) and not isinstance(error, EntryNotFoundError) and not _is_of_this_machine(error)


@contextmanager
def explained(name: str, endpoint: str, has_token: bool) -> Iterator[None]:
    """Let what the library raises leave as a `FetchError`: one line without URLs, which may be signed.

    Args:
        name: What is asked for.
        endpoint: Whom.
        has_token: Whether a token was given for this.
    """
    try:
        yield
    except FOREIGN as error:
        status = _status(error)
        if status is not None:
            reason = _by_kind(error, endpoint, has_token) or _by_status(error, status, endpoint, has_token)
            raise FetchError(f"{name}: {reason}", retryable=status == 429 or is_away(error)) from error
        if _is_of_this_machine(error):
            raise
        raise _unreachable(error, name, endpoint) from error


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    return int(response.status_code) if response is not None else None


def _is_of_this_machine(error: BaseException) -> bool:
    """A full disk, say: the operating system gives its errors a number, the library's have none."""
    of_network = isinstance(error, (ConnectionError, TimeoutError))
    return isinstance(error, OSError) and error.errno is not None and not of_network


def _unreachable(error: BaseException, name: str, endpoint: str) -> FetchError:
    # Some libraries quote the URL, and what follows its path may be a signature.
    said = _QUERY.sub("?…", (str(error).strip().splitlines() or [""])[0])
    return FetchError(
        f"{name}: {endpoint} could not be read ({type(error).__name__}: {said}); check the network, or set HF_ENDPOINT "
        "to a mirror; what came so far is kept",
        retryable=True,
    )


def _by_kind(error: BaseException, endpoint: str, has_token: bool) -> str | None:
    if isinstance(error, GatedRepoError):
        if has_token:
            return "it is gated and the account of the token has no access; ask for it on its page there"
        return "it is gated; accept its terms on its page there, and give a token of that account as access_token"
    if isinstance(error, DisabledRepoError):
        return f"{endpoint} has disabled it; take another one"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision; name a branch, a tag or a whole commit"
    if isinstance(error, EntryNotFoundError):
        return "a file that it listed is gone; fetch it anew"
    return None


def _by_status(error: BaseException, status: int, endpoint: str, has_token: bool) -> str:
    if status == 429:
        return f"{endpoint} was asked too often (429); wait some minutes" + (
            "" if has_token else ", or give an access_token: with one, more is allowed"
        )
    if status >= 500:
        return f"{endpoint} answers {status}; it has trouble of its own, try again later"
    if status == 401 and (has_token or "credentials" in str(error)):
        return f"{endpoint} refuses the token (401): it is wrong or has expired; make a new one at {_TOKENS}"
    if status in (401, 404):
        remedy = "the token does not let it be seen" if has_token else "it is private: then give an access_token"
        return (
            f"{endpoint} knows none of that name, or {remedy}; check the name, and whether it is a model or a dataset"
        )
    if status == 403:
        return f"{endpoint} forbids it (403); give the token the right to read this repository, at {_TOKENS}"
    return f"{endpoint} answers {status}"
