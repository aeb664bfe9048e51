"""Converts errors of huggingface_hub to one-line messages with a remedy, and says which are retryable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import cast

from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RevisionNotFoundError,
)

from trainer_core.fetch.source import FetchError

#: What huggingface_hub raises. The first entry is the base class of the errors of its HTTP library, requests or
#: httpx, depending on the major version.
HUB_ERRORS = cast(
    "tuple[type[Exception], ...]", (HfHubHTTPError.__bases__[0], HfHubHTTPError, EntryNotFoundError, OSError)
)
_QUERY = re.compile(r"\?[^\s'\"]+")
_TOKENS = "https://huggingface.co/settings/tokens"


def is_transient(error: BaseException) -> bool:
    """Return whether the Hub was unreachable, busy or had a server error, so that a request may be repeated."""
    status = _get_status(error)
    if status is not None:
        return status >= 500 or status == HTTPStatus.TOO_MANY_REQUESTS
    # EntryNotFoundError may come without a response.
    return isinstance(error, HUB_ERRORS) and not isinstance(error, EntryNotFoundError) and not _is_local(error)


@contextmanager
def convert_errors(name: str, endpoint: str, has_token: bool) -> Iterator[None]:
    """Raise huggingface_hub's errors as `FetchError`: one line without URLs of files, which may contain a signature."""
    try:
        yield
    except HUB_ERRORS as error:
        status = _get_status(error)
        if status is not None:
            reason = _explain_type(error, endpoint, has_token) or _explain_status(error, status, endpoint, has_token)
            raise FetchError(f"{name}: {reason}", retryable=is_transient(error)) from error
        if _is_local(error):
            raise
        raise _build_connection_error(error, name, endpoint) from error


def _get_status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    return int(response.status_code) if response is not None else None


def _is_local(error: BaseException) -> bool:
    """Whether the operating system raised it, for example for a full disk: such errors have an errno."""
    of_network = isinstance(error, (ConnectionError, TimeoutError))
    return isinstance(error, OSError) and error.errno is not None and not of_network


def _build_connection_error(error: BaseException, name: str, endpoint: str) -> FetchError:
    # Some libraries quote the URL; its query may contain a signature.
    detail = _QUERY.sub("?…", (str(error).strip().splitlines() or [""])[0])
    return FetchError(
        f"{name}: {endpoint} could not be read ({type(error).__name__}: {detail}); check the network, or set "
        "HF_ENDPOINT to a mirror; a retry resumes the download",
        retryable=True,
    )


def _explain_type(error: BaseException, endpoint: str, has_token: bool) -> str | None:
    if isinstance(error, GatedRepoError):
        if has_token:
            return "the repository is gated and the token's account has no access; request access on its page"
        return "the repository is gated; accept its terms on its page, and pass a token of that account as access_token"
    if isinstance(error, DisabledRepoError):
        return f"{endpoint} has disabled the repository; use another one"
    if isinstance(error, RevisionNotFoundError):
        return "the revision does not exist; use a branch, a tag or a full commit hash"
    if isinstance(error, EntryNotFoundError):
        return "a listed file no longer exists; fetch the repository again"
    return None


def _explain_status(error: BaseException, status: int, endpoint: str, has_token: bool) -> str:
    if status == 429:
        return f"{endpoint} limits the rate of requests (429); wait some minutes" + (
            "" if has_token else ", or pass an access_token: the limit with a token is higher"
        )
    if status >= 500:
        return f"{endpoint} has a server error ({status}); try again later"
    if status == 401 and (has_token or "credentials" in str(error)):
        return f"{endpoint} rejects the token (401): it is wrong or has expired; create a new one at {_TOKENS}"
    if status in (401, 404):
        reason = "the token has no access to it" if has_token else "it is private and needs an access_token"
        return f"{endpoint} has no such repository, or {reason}; check the name, and whether it is a model or a dataset"
    if status == 403:
        return f"{endpoint} denies access (403); grant the token read access to this repository at {_TOKENS}"
    return f"{endpoint} answered with status {status}"
