"""Converts errors of S3 storage to one-line messages with a remedy, and says which are retryable. Pure."""

from __future__ import annotations

import re
from typing import Literal

from trainer_core.fetch.source import FetchError

#: Origin of the credentials: ``given`` in the settings, ``found`` where the step runs (a restart finds new ones), or
#: ``none``.
Signer = Literal["given", "found", "none"]

_CODE = re.compile(r"<Code>\s*([A-Za-z]+)\s*</Code>|\(([A-Za-z0-9]+)\) when calling")
_STATUS = re.compile(r"non-2xx status code: (\d{3})|HTTPStatusCode\W+(\d{3})")
#: The cause of a connection error, deep inside the text of obstore.
_DETAIL = re.compile(r'message: "([^"]+)"|(dns error|operation timed out|TimedOut)')
#: A key that is no path, in the text of obstore.
_KEY = re.compile(r'path: ("(?:[^"\\]|\\.)*")')
_MAX_DETAIL_LENGTH = 300

_KEYS = "check access_key_id and secret_access_key"
_REGION = "the bucket is in another region; set region"
_NOT_FOUND = "check bucket and prefix in storage_uri, and endpoint"
_EXPIRED = "the credentials have expired; create new ones"
#: Error code → the message, and whether a retry can succeed.
_BY_CODE: dict[str, tuple[str, bool]] = {
    "AccessDenied": ("the credentials may not read it; grant them s3:ListBucket and s3:GetObject", False),
    "AllAccessDisabled": ("access to the bucket is disabled; ask its owner", False),
    "AuthorizationHeaderMalformed": (_REGION, False),
    "ExpiredToken": (_EXPIRED, False),
    "ExpiredTokenException": (_EXPIRED, False),
    "IllegalLocationConstraintException": (_REGION, False),
    "InvalidAccessKeyId": (f"the storage does not know the access key; {_KEYS}", False),
    "InvalidBucketName": ("the name of the bucket is not valid; " + _NOT_FOUND, False),
    "InvalidClientTokenId": (f"the storage does not know the access key; {_KEYS}", False),
    "InvalidIdentityToken": ("the web identity token was rejected; check the role's trust policy", False),
    "InvalidObjectState": ("the object is archived; restore it first", False),
    "InvalidToken": (f"the session token is not valid; {_KEYS}", False),
    "NoSuchBucket": ("the bucket does not exist; " + _NOT_FOUND, False),
    "NoSuchKey": ("the object was deleted after the bucket was listed; fetch again", True),
    "PermanentRedirect": (_REGION, False),
    "PreconditionFailed": ("the object changed while it was fetched; fetch again when no process writes to it", True),
    "RequestExpired": (_EXPIRED, False),
    "RequestTimeout": ("the storage waited too long for the request; try again later", True),
    "RequestTimeTooSkewed": ("the clock of this machine is wrong; set it", False),
    "SignatureDoesNotMatch": (f"the secret access key does not match the access key; {_KEYS}", False),
    "ServiceUnavailable": ("the storage is unavailable; try again later", True),
    "SlowDown": ("the storage limits the rate of requests; try again later", True),
    "Throttling": ("the storage limits the rate of requests; try again later", True),
}
_BY_STATUS: dict[str, tuple[str, bool]] = {
    "401": (f"the credentials were rejected; {_KEYS}", False),
    "403": _BY_CODE["AccessDenied"],
    "404": ("the object does not exist; " + _NOT_FOUND, False),
    "412": _BY_CODE["PreconditionFailed"],
    "429": _BY_CODE["SlowDown"],
}
_EXPIRY_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})


def convert_error(error: Exception, name: str, signer: Signer = "given") -> FetchError:
    text = str(error)
    code, status, detail = (_find_first(pattern, text) for pattern in (_CODE, _STATUS, _DETAIL))
    answer = " ".join(filter(None, (status, code)))
    if code in _EXPIRY_CODES and signer == "found":
        return FetchError(f"{name}: the credentials expired during the fetch ({answer}); try again", retryable=True)
    if status == "403" and signer == "none":
        return FetchError(f"{name}: it is not public, and no credentials were found; set access_key_id ({answer})")
    known = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if known:
        return FetchError(f"{name}: {known[0]}" + (f" ({answer})" if answer else ""), known[1])
    if status.startswith("5"):
        return FetchError(f"{name}: the storage has a server error; try again later ({answer})", retryable=True)
    if status:
        return FetchError(f"{name}: the storage rejected the request ({answer})")
    return _convert_client_error(text, detail, name)


def _convert_client_error(text: str, detail: str, name: str) -> FetchError:
    """Convert an error without an answer of the storage."""
    # After an empty line obstore appends debug output.
    line = " ".join(text.strip().partition("\n\n")[0].split()) or "unknown error"
    if "redirect without LOCATION" in text:
        return FetchError(f"{name}: {_REGION}")
    if "invalid path" in text or "empty path segment" in text:
        bucket, key = "/".join(name.split("/")[:3]), _find_first(_KEY, text) or "a key"
        return FetchError(f"{bucket}: {_truncate(key)} is not a valid path of a file; rename the object")
    if "InvalidCertificate" in text:
        return FetchError(f"{name}: the certificate of the storage is not trusted; set AWS_CA_BUNDLE to the CA's file")
    if "HTTP error" in text or "Could not connect" in text or "body error" in text:
        cause = detail or _truncate(line.rpartition("HTTP error: ")[2])
        return FetchError(f"{name}: the connection failed ({cause}); check endpoint, or try again later", True)
    return FetchError(f"{name}: {_truncate(line)}")


def _find_first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return next((group for group in match.groups() if group), "") if match else ""


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_DETAIL_LENGTH else text[:_MAX_DETAIL_LENGTH] + " […]"
