"""What S3 storage and its client say → one line that says what to do, and whether a retry can help. Pure."""

from __future__ import annotations

import re
from typing import Literal

from trainer_core.fetching.source import FetchError

__all__ = ["Signer", "explained"]

#: Whose credentials: those the user gave, those found or assumed where it runs (a new start finds new ones), or none.
Signer = Literal["given", "found", "nobody"]

_CODE = re.compile(r"<Code>\s*([A-Za-z]+)\s*</Code>|\(([A-Za-z0-9]+)\) when calling")
_STATUS = re.compile(r"non-2xx status code: (\d{3})|HTTPStatusCode\W+(\d{3})")
#: What the socket said, deep inside.
_DETAIL = re.compile(r'message: "([^"]+)"|(dns error|operation timed out|TimedOut)')
_MOST = 300

_KEYS = "check access_key_id and secret_access_key"
_REGION = "the bucket is in another region; give region="
_GONE = "check bucket, prefix and endpoint in storage_uri and endpoint"
#: By error code: what to do, and whether doing the same again can help.
_KNOWN: dict[str, tuple[str, bool]] = {
    "AccessDenied": ("these credentials may not read it: they need s3:ListBucket and s3:GetObject", False),
    "AllAccessDisabled": ("the bucket is closed to everybody", False),
    "AuthorizationHeaderMalformed": (_REGION, False),
    "ExpiredToken": ("the credentials have expired; get new ones", False),
    "ExpiredTokenException": ("the credentials have expired; get new ones", False),
    "IllegalLocationConstraintException": (_REGION, False),
    "InvalidAccessKeyId": (f"the storage does not know the access key; {_KEYS}", False),
    "InvalidBucketName": ("no bucket can have that name; " + _GONE, False),
    "InvalidClientTokenId": (f"the storage does not know the access key; {_KEYS}", False),
    "InvalidIdentityToken": ("the web identity token was refused; check the role's trust policy", False),
    "InvalidObjectState": ("it is archived; restore it first", False),
    "InvalidToken": (f"the session token is not right; {_KEYS}", False),
    "NoSuchBucket": ("there is no such bucket; " + _GONE, False),
    "NoSuchKey": ("it is gone since the bucket was listed", True),
    "PermanentRedirect": (_REGION, False),
    "PreconditionFailed": ("it changed while it was fetched; fetch it again when nobody writes to it", True),
    "RequestExpired": ("the credentials have expired; get new ones", False),
    "RequestTimeTooSkewed": ("the clock of this machine is wrong; set it", False),
    "SignatureDoesNotMatch": (f"the secret does not belong to the access key; {_KEYS}", False),
    "ServiceUnavailable": ("it is out of order; try again later", True),
    "SlowDown": ("the storage wants fewer requests; try again later", True),
    "Throttling": ("it wants fewer requests; try again later", True),
}
_BY_STATUS: dict[str, tuple[str, bool]] = {
    "401": (f"the credentials were refused; {_KEYS}", False),
    "403": _KNOWN["AccessDenied"],
    "404": ("it is not there; " + _GONE, False),
    "412": _KNOWN["PreconditionFailed"],
    "429": _KNOWN["SlowDown"],
}
_RENEWED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})


def explained(error: Exception, what: str, signer: Signer = "given") -> FetchError:
    """Return the line for what a client raised.

    Args:
        error: Raised by obstore or botocore.
        what: What was being fetched.
        signer: Whose credentials were used.
    """
    text = str(error)
    code, status, detail = (_first(pattern, text) for pattern in (_CODE, _STATUS, _DETAIL))
    told = " ".join(filter(None, (status, code)))
    if code in _RENEWED and signer == "found":
        return FetchError(f"{what}: the credentials expired on the way ({told}); try again", retryable=True)
    if status == "403" and signer == "nobody":
        return FetchError(f"{what}: it is not public, and no credentials were found; give access_key_id ({told})")
    known = _KNOWN.get(code) or _BY_STATUS.get(status)
    if known:
        return FetchError(f"{what}: {known[0]}" + (f" ({told})" if told else ""), known[1])
    if status.startswith("5"):
        return FetchError(f"{what}: the storage is out of order; try again later ({told})", retryable=True)
    if status:
        return FetchError(f"{what}: the storage refused it ({told})")
    return _of_client(text, detail, what)


def _of_client(text: str, detail: str, what: str) -> FetchError:
    """Of what the client says by itself."""
    # Below an empty line obstore shows its insides.
    line = " ".join(text.strip().partition("\n\n")[0].split()) or "nothing was said"
    if "redirect without LOCATION" in text:
        return FetchError(f"{what}: {_REGION}")
    if "invalid path" in text or "empty path segment" in text:
        return FetchError(f"{what}: a key in it can be no path of a folder; rename it ({_short(line)})")
    if "InvalidCertificate" in text:
        return FetchError(f"{what}: the certificate of the storage is not trusted; name its authority in AWS_CA_BUNDLE")
    if "HTTP error" in text or "Could not connect" in text or "body error" in text:
        how = detail or _short(line.rpartition("HTTP error: ")[2])
        return FetchError(f"{what}: no answer, or only half of one ({how}); check endpoint, or try again later", True)
    return FetchError(f"{what}: {_short(line)}")


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return next((group for group in match.groups() if group), "") if match else ""


def _short(text: str) -> str:
    return text if len(text) <= _MOST else text[:_MOST] + " […]"
