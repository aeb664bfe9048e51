"""A client of S3 storage: signed requests with retries, uploads in parts, downloads in pieces. Standard library only.

Settings and credentials are the environment variables that all SDKs of AWS read. They are in no message.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import importlib
import importlib.util
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
import zlib
from calendar import timegm
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

#: Bytes of a part of an upload and of a piece of a download; S3 accepts 10,000 parts.
_PIECE, _MAX_PARTS = 16 * 2**20, 10_000
_WORKERS = 8
#: Bytes that a download reads at once.
_BLOCK = 2**18
#: About half a minute in all.
_ATTEMPTS, _FIRST_DELAY, _MAX_DELAY = 10, 0.1, 8.0
_TIMEOUT = 60.0
_RETRYABLE = {409, 429, 500, 502, 503, 504}
_RETRYABLE_CODES = {"RequestTimeout", "InternalError", "SlowDown", "ServiceUnavailable"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
#: Seconds before their end at which credentials are renewed.
_RENEW = 300.0
_EMPTY = hashlib.sha256(b"").hexdigest()
_HINTS = {
    "AccessDenied": "the credentials need s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject",
    "InvalidAccessKeyId": "the storage does not know AWS_ACCESS_KEY_ID; correct it",
    "NoSuchBucket": "the bucket does not exist; correct the URI or AWS_ENDPOINT_URL",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY does not match AWS_ACCESS_KEY_ID; correct it",
}


class S3Error(OSError):
    """The storage refused a request, or did not answer, which may pass; the message is one line."""

    def __init__(self, message: str, status: int = 0, may_pass: bool = False) -> None:
        super().__init__(message)
        self.status, self.may_pass = status, may_pass


class Entry(NamedTuple):
    """An object: key, bytes, when it was written, in seconds since 1970, and ETag, mostly the MD5 of its content."""

    key: str
    size: int
    modified: float
    etag: str = ""


class _Keys(NamedTuple):
    access_key: str
    secret_key: str
    token: str
    expires: float


class _Answer(NamedTuple):
    headers: Mapping[str, str]
    body: bytes


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """Follow none: the signature is for one host."""


class Bucket:
    """A bucket of AWS, or of other storage if AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is set."""

    def __init__(self, name: str) -> None:
        environ = os.environ.get
        self.name = name
        self._region = environ("AWS_REGION") or environ("AWS_DEFAULT_REGION") or "us-east-1"
        self._custom = (environ("AWS_ENDPOINT_URL_S3") or environ("AWS_ENDPOINT_URL") or "").rstrip("/")
        if self._custom and (urlsplit(self._custom).scheme not in ("http", "https") or "@" in self._custom):
            raise S3Error("AWS_ENDPOINT_URL must be a URL such as https://minio.example.com:9000")
        try:
            context = ssl.create_default_context(cafile=environ("AWS_CA_BUNDLE") or None)
        except OSError as error:
            raise S3Error(f"AWS_CA_BUNDLE is not a file with certificates: {error}") from error
        self._opener = urllib.request.build_opener(_NoRedirects(), urllib.request.HTTPSHandler(context=context))
        self._keys = self._find_keys()

    def get(self, key: str) -> bytes | None:
        """Return an object; None if it does not exist."""
        try:
            return self._request("GET", key).body
        except S3Error as error:
            if error.status == 404:
                return None
            raise

    def exists(self, key: str) -> bool:
        """Return whether an object exists."""
        return self.find(key) is not None

    def find(self, key: str) -> Entry | None:
        """Return what is known of an object; None if it does not exist."""
        try:
            try:
                answer = self._request("HEAD", key)
            except S3Error as error:
                if error.status not in (400, 403):
                    raise
                # The answer to HEAD has no code, which tells expired keys and time-outs from other refusals.
                answer = self._request("GET", key, receive=lambda _: b"")
        except S3Error as error:
            if error.status == 404:
                return None
            raise
        headers = answer.headers
        modified = parsedate_to_datetime(headers["Last-Modified"]).timestamp() if "Last-Modified" in headers else 0.0
        return Entry(key, int(headers.get("Content-Length") or 0), modified, headers.get("ETag", "").strip('"'))

    def put(self, key: str, body: bytes) -> None:
        self._request("PUT", key, body=body)

    def create(self, key: str, body: bytes) -> None:
        """Write an object that does not exist; storage without conditional writes overwrites it."""
        try:
            self._request("PUT", key, body=body, headers={"If-None-Match": "*"})
        except S3Error as error:
            if error.status == 501:
                self.put(key, body)
            elif error.status != 412 or self.get(key) != body:
                # The answer to a request that was repeated: the first one has written the object.
                raise

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that do not exist are ignored."""
        _run_all(lambda key: self._request("DELETE", key), [(key,) for key in keys])

    def list_objects(self, prefix: str) -> list[Entry]:
        """Return the objects whose keys begin with a prefix, by key."""
        query, found = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}, []
        while True:
            page = _parse(self._request("GET", "", query).body)
            decode = unquote if page.findtext("EncodingType") == "url" else str
            for each in page.iter("Contents"):
                modified = _parse_time(each.findtext("LastModified") or "")
                size, etag = int(each.findtext("Size") or 0), (each.findtext("ETag") or "").strip('"')
                found.append(Entry(decode(each.findtext("Key") or ""), size, modified, etag))
            token = page.findtext("NextContinuationToken")
            if page.findtext("IsTruncated") != "true" or not token:
                return found
            query["continuation-token"] = token

    def read_clock(self) -> float:
        date = self._request("GET", "", {"list-type": "2", "max-keys": "1"}).headers.get("Date")
        return parsedate_to_datetime(date).timestamp() if date else time.time()

    def abort_uploads(self, prefix: str) -> None:
        """Delete the parts of uploads that were never completed."""
        page = _parse(self._request("GET", "", {"uploads": "", "prefix": prefix}).body)
        for each in page.iter("Upload"):
            key, upload = each.findtext("Key") or "", each.findtext("UploadId") or ""
            self._request("DELETE", key, {"uploadId": upload})

    def upload(self, paths: Mapping[str, Path]) -> None:
        """Write files by key: large ones in parts, one after the other; small ones several at a time."""
        sizes = {key: path.stat().st_size for key, path in paths.items()}
        for key, path in paths.items():
            if sizes[key] > _PIECE:
                self._upload_parts(key, path, sizes[key])
        small = [(key, path) for key, path in paths.items() if sizes[key] <= _PIECE]
        _run_all(lambda key, path: self.put(key, path.read_bytes()), small)

    def download(self, files: Mapping[str, tuple[Path, int]]) -> dict[str, int]:
        """Write objects into files: path and size by key. Return the CRC-32 of what was received by key."""
        for path, size in files.values():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.truncate(size)
        pieces = [(k, p, at, min(_PIECE, n - at)) for k, (p, n) in files.items() for at in range(0, n, _PIECE)]
        sums = dict.fromkeys(files, 0)
        # A second reading of the files for their checksums would take a quarter of the time.
        for (key, _, _, length), crc in zip(pieces, _run_all(self._download_piece, pieces)):  # noqa: B905 -- as below
            sums[key] = _combine_crc(sums[key], crc, length)
        return sums

    def _download_piece(self, key: str, path: Path, start: int, length: int) -> int:
        crc = 0

        def write(response: http.client.HTTPResponse) -> bytes:
            nonlocal crc
            crc, left, block = 0, length, memoryview(bytearray(_BLOCK))
            with path.open("r+b") as file:
                file.seek(start)
                while count := response.readinto(block):
                    file.write(block[:count])
                    crc, left = zlib.crc32(block[:count], crc), left - count
            if left > 0:
                raise http.client.IncompleteRead(b"", left)
            return b""

        self._request("GET", key, headers={"Range": f"bytes={start}-{start + length - 1}"}, receive=write)
        return crc

    def _upload_parts(self, key: str, path: Path, size: int) -> None:
        upload = _parse(self._request("POST", key, {"uploads": ""}).body).findtext("UploadId") or ""
        length = max(_PIECE, -(-size // _MAX_PARTS))

        def put_part(number: int) -> str:
            with path.open("rb") as file:
                file.seek((number - 1) * length)
                body = file.read(length)
            answer = self._request("PUT", key, {"partNumber": str(number), "uploadId": upload}, body)
            return answer.headers.get("ETag", "")

        try:
            numbers = range(1, -(-size // length) + 1)
            etags = _run_all(put_part, [(number,) for number in numbers])
            parts = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
                for number, etag in zip(numbers, etags)  # noqa: B905 -- images may have Python 3.9
            )
            body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
            try:
                self._request("POST", key, {"uploadId": upload}, body)
            except S3Error as error:
                # The answer to a request that was repeated: the first one has completed the upload.
                if error.status != 404 or not self.exists(key):
                    raise
        except BaseException:
            with contextlib.suppress(S3Error):
                self._request("DELETE", key, {"uploadId": upload})
            raise

    def _request(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        receive: Callable[[http.client.HTTPResponse], bytes] = http.client.HTTPResponse.read,
    ) -> _Answer:
        """Send a request; repeat it after a broken connection and where the storage is overloaded."""
        problem, status = "", 0
        for attempt in range(_ATTEMPTS):
            if attempt:
                # The jitter keeps the ranks from coming back all at once.
                time.sleep(min(_MAX_DELAY, _FIRST_DELAY * 2**attempt) * (0.5 + os.urandom(1)[0] / 512))
            if self._keys.expires - time.time() < _RENEW:
                self._keys = self._find_keys()
            try:
                with self._opener.open(
                    self._sign(method, key, query or {}, body, headers or {}), timeout=_TIMEOUT
                ) as r:
                    answer = _Answer(r.headers, receive(r))
                if not (method == "POST" and b"<Error>" in answer.body[:1000]):
                    return answer
                # The completion of an upload can fail after its status was sent.
                status, problem = 500, _find_code(answer.body)
            except urllib.error.HTTPError as error:
                code = _read_code(error)
                status, problem = error.code, code or ""
                if code is not None and not self._can_repeat(status, problem, error.headers):
                    break
            except (OSError, http.client.HTTPException) as error:
                status, problem = 0, str(getattr(error, "reason", None) or error) or type(error).__name__
        what = " ".join(filter(None, (str(status or ""), problem)))
        hint = f"; {_HINTS[problem]}" if problem in _HINTS else ""
        message = f"{method} s3://{self.name}/{key}: {what or 'no answer'}{hint}"
        raise S3Error(message, status, may_pass=status in (0, 429) or status > 499)

    def _can_repeat(self, status: int, code: str, headers: Any) -> bool:
        region = headers.get("x-amz-bucket-region") or self._region
        if region != self._region and not self._custom:
            self._region = region
            return True
        if code in _EXPIRED and self._keys.expires != float("inf"):
            self._keys = self._find_keys()
            return True
        return status in _RETRYABLE or code in _RETRYABLE_CODES

    def _get_endpoint(self, service: str) -> str:
        suffix = ".cn" if self._region.startswith("cn-") else ""
        return self._custom or f"https://{service}.{self._region}.amazonaws.com{suffix}"

    def _sign(
        self, method: str, key: str, query: Mapping[str, str], body: bytes, headers: Mapping[str, str]
    ) -> urllib.request.Request:
        """Build a request with Signature Version 4; see Amazon's "Create a signed AWS API request"."""
        endpoint = urlsplit(self._get_endpoint("s3"))
        path = quote(f"{endpoint.path}/{self.name}" + (f"/{key}" if key else ""), safe="/-_.~")
        arguments = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY
        signed = {"host": endpoint.netloc, "x-amz-content-sha256": digest, "x-amz-date": now}
        if self._keys.token:
            signed["x-amz-security-token"] = self._keys.token
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        canonical = f"{method}\n{path}\n{arguments}\n{lines}\n{names}\n{digest}"
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        secret = f"AWS4{self._keys.secret_key}".encode()
        for part in scope.split("/"):
            secret = hmac.new(secret, part.encode(), "sha256").digest()
        signature = hmac.new(secret, text.encode(), "sha256").hexdigest()
        signed["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        url = f"{endpoint.scheme}://{endpoint.netloc}{path}" + (f"?{arguments}" if arguments else "")
        sends = method in ("PUT", "POST")
        kind = {"Content-Type": "application/octet-stream"} if sends else {}
        return urllib.request.Request(url, body if sends else None, {**signed, **headers, **kind}, method=method)  # noqa: S310

    def _find_keys(self) -> _Keys:
        """Return the credentials of this process: keys, those of its service account, or what botocore finds."""
        environ = os.environ.get
        if environ("AWS_ACCESS_KEY_ID") and environ("AWS_SECRET_ACCESS_KEY"):
            token = os.environ.get("AWS_SESSION_TOKEN", "")
            return _Keys(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], token, float("inf"))
        if environ("AWS_WEB_IDENTITY_TOKEN_FILE") and environ("AWS_ROLE_ARN"):
            return self._assume_role(Path(os.environ["AWS_WEB_IDENTITY_TOKEN_FILE"]), os.environ["AWS_ROLE_ARN"])
        url, relative = (environ(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI") for kind in ("FULL", "RELATIVE"))
        if url or relative:
            return self._ask_container(url or f"http://169.254.170.2{relative}")
        if importlib.util.find_spec("botocore"):
            session = importlib.import_module("botocore.session")
            try:
                found = session.Session().get_credentials()
                keys = found.get_frozen_credentials() if found else None
            except Exception as error:  # The sources of botocore have many, without a common class.
                raise S3Error(f"credentials cannot be read: {error}") from error
            if keys is not None:
                return _Keys(keys.access_key, keys.secret_key, keys.token or "", time.time() + 2 * _RENEW)
        raise S3Error(
            "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for a training as SecretRefs in its env"
        )

    def _assume_role(self, token: Path, role: str) -> _Keys:
        query = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": role,
            "RoleSessionName": os.environ.get("AWS_ROLE_SESSION_NAME") or "trainjob-checkpoints",
            "WebIdentityToken": token.read_text(encoding="utf-8").strip(),
        }
        endpoint = os.environ.get("AWS_ENDPOINT_URL_STS") or self._get_endpoint("sts")
        answer = self._open(urllib.request.Request(endpoint, urlencode(query).encode()), f"role {role}")  # noqa: S310
        page = _parse(answer)
        key, secret, session, end = (
            page.findtext(f".//{name}") or ""
            for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
        )
        return _Keys(key, secret, session, _parse_time(end))

    def _ask_container(self, url: str) -> _Keys:
        file = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        token = Path(file).read_text(encoding="utf-8").strip() if file else ""
        token = token or os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        headers = {"Authorization": token} if token else {}
        found = json.loads(self._open(urllib.request.Request(url, headers=headers), "credentials of the pod"))  # noqa: S310
        return _Keys(
            found["AccessKeyId"], found["SecretAccessKey"], found.get("Token", ""), _parse_time(found["Expiration"])
        )

    def _open(self, request: urllib.request.Request, what: str) -> bytes:
        for attempt in range(_ATTEMPTS):
            try:
                with self._opener.open(request, timeout=_TIMEOUT) as answer:
                    body: bytes = answer.read()
                    return body
            except (OSError, http.client.HTTPException) as error:
                status, code = getattr(error, "code", 500), str(error) or type(error).__name__
                answered = _read_code(error) if isinstance(error, urllib.error.HTTPError) else None
                if (answered is not None and status not in _RETRYABLE) or attempt == _ATTEMPTS - 1:
                    raise S3Error(f"{what}: the credentials were not given ({answered or code})", status) from None
            time.sleep(min(_MAX_DELAY, _FIRST_DELAY * 2**attempt))
        raise AssertionError


def _run_all(function: Callable[..., Any], calls: list[Any]) -> list[Any]:
    """Call a function several times at once; return the results in order. After a failure no further call begins."""
    if len(calls) < 2:
        return [function(*each) for each in calls]
    with ThreadPoolExecutor(min(_WORKERS, len(calls))) as threads:
        futures = [threads.submit(function, *each) for each in calls]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _combine_crc(first: int, second: int, length: int) -> int:
    """Return the CRC-32 of two pieces by theirs and the length of the second: zlib's crc32_combine."""
    shift, power = 1 << 31, 1 << 23  # The polynomials 1 and x to the power of 8, for a byte.
    while length:
        if length & 1:
            shift = _multiply(shift, power)
        power, length = _multiply(power, power), length >> 1
    return _multiply(shift, first) ^ second


def _multiply(first: int, second: int) -> int:
    """Multiply two polynomials modulo that of CRC-32, bits reversed."""
    product = 0
    for bit in range(31, -1, -1):
        if first >> bit & 1:
            product ^= second
        second = second >> 1 ^ (0xEDB88320 if second & 1 else 0)
    return product


def _parse(body: bytes) -> ET.Element:
    """Return an answer without its namespaces, which storage of others may leave out."""
    try:
        root = ET.fromstring(body)  # noqa: S314 -- the storage is the one that holds the checkpoints
    except ET.ParseError as error:
        raise S3Error(f"the storage's answer is not XML ({error}); check AWS_ENDPOINT_URL") from None
    for each in root.iter():
        each.tag = each.tag.rpartition("}")[2]
    return root


def _find_code(body: bytes) -> str:
    found = re.search(rb"<Code>\s*([A-Za-z]+)\s*</Code>", body)
    return found[1].decode() if found else ""


def _read_code(error: urllib.error.HTTPError) -> str | None:
    """Return the code of an error; None if the connection broke before the whole answer was read."""
    try:
        return _find_code(error.read())
    except (OSError, http.client.HTTPException):
        return None


def _parse_time(text: str) -> float:
    """Return a time such as 2026-11-22T19:30:00Z in seconds since 1970."""
    try:
        return timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0
