"""The way to a bucket: endpoint, region, and credentials that are renewed while a fetch goes on.

Keys that are given are used as they are. Everything else is botocore's: it finds what the AWS command line finds
(environment, profiles, web identity, the machine's or the pod's role) and assumes roles. Where it finds nothing,
requests are not signed, as public buckets want it.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store

from trainer_core.fetching.s3 import errors
from trainer_core.fetching.s3.errors import Signer
from trainer_core.fetching.settings import Settings
from trainer_core.fetching.source import FetchError

if TYPE_CHECKING:
    from obstore.store import S3Credential

__all__ = ["Access", "bucket_region", "connect"]

_AWS = "https://s3.amazonaws.com"
_ANY_REGION = "us-east-1"
_AUTO = "auto"
_SESSION = "trainjob-initializer"
_LOOK_SECONDS = 10
#: obstore asks again five minutes before; botocore renews in time whenever it is asked.
_ASK_AGAIN = timedelta(minutes=10)
#: A stalled connection is given up; a slow one is not.
_CLIENT = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "6h"}


@dataclass(frozen=True)
class Access:
    """A bucket that can be read.

    Attributes:
        store: obstore's.
        signer: Whose credentials are used.
        client: Makes botocore's client, for the few questions that obstore cannot ask.
    """

    store: S3Store
    signer: Signer
    client: Callable[[], Any]


@dataclass(frozen=True)
class _Given:
    """Keys that the user gave, in botocore's words."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: None = None

    def get_frozen_credentials(self) -> _Given:
        return self


def connect(settings: Settings, bucket: str, retries: int) -> Access:
    """Return the way to a bucket; no request is made to it yet.

    Args:
        settings: Endpoint, region, keys, role.
        bucket: Its name.
        retries: How often to repeat a request that failed for reasons that may pass.

    Raises:
        FetchError: The settings contradict each other, or the role cannot be assumed.
    """
    endpoint = settings.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    _check(settings, endpoint)
    region = settings.region
    if region is None or (region == _AUTO and not endpoint):
        region = _ANY_REGION if endpoint else bucket_region(bucket)
    found = _credentials(settings, endpoint, region)
    how: dict[str, Any] = {"skip_signature": True} if found is None else {"credential_provider": _provider(found)}
    if endpoint:
        how["endpoint"] = endpoint.rstrip("/")
    http = _http(endpoint)
    try:
        store = S3Store(bucket, region=region, client_options=http, retry_config={"max_retries": retries}, **how)
    except BaseError as error:
        raise errors.explained(error, f"s3://{bucket}") from error
    signer: Signer = "nobody" if found is None else "given" if isinstance(found, _Given) else "found"
    return Access(store, signer, lambda: _client("s3", endpoint, region, found))


def bucket_region(bucket: str, at: str = _AWS) -> str:
    """Ask AWS in which region a bucket is, which it tells everybody; one that is not told is the default."""
    request = urllib.request.Request(f"{at}/{bucket}", method="HEAD")  # noqa: S310 -- the address is AWS's
    try:
        with urllib.request.urlopen(request, timeout=_LOOK_SECONDS) as answer:  # noqa: S310
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except OSError:
        headers = {}
    default = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _ANY_REGION
    return str(headers.get("x-amz-bucket-region") or default)


def _check(settings: Settings, endpoint: str | None) -> None:
    if (settings.access_key_id is None) != (settings.secret_access_key is None):
        raise FetchError("access_key_id and secret_access_key belong together; give both or none")
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc):
        raise FetchError("endpoint must be a URL such as https://minio.example.com:9000")


def _http(endpoint: str | None) -> Any:
    """How obstore speaks HTTP: with the authorities that botocore trusts, too."""
    options: dict[str, Any] = {**_CLIENT, "allow_http": (endpoint or "").startswith("http://")}
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if bundle:
        try:
            options["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            raise FetchError(f"AWS_CA_BUNDLE={bundle} cannot be read: {error.strerror}") from error
    return options


def _credentials(settings: Settings, endpoint: str | None, region: str) -> Any:
    """What signs requests, as botocore has it; None where nothing is found."""
    if settings.access_key_id and settings.secret_access_key:
        given = _Given(settings.access_key_id, settings.secret_access_key)
        return _in_role(settings.role_arn, given, endpoint, region) if settings.role_arn else given
    from botocore import session  # type: ignore[import-untyped]  # a third of a second

    token = os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if settings.role_arn and token and os.environ.get("AWS_ROLE_ARN", settings.role_arn) == settings.role_arn:
        return _by_token(settings.role_arn, token, endpoint, region)
    try:
        found = session.Session().get_credentials()
    except Exception as error:  # botocore has dozens, one for each way of finding credentials
        raise FetchError(f"the AWS credentials of this machine cannot be read: {_line(error)}") from error
    if settings.role_arn is None:
        return found
    if found is None:
        raise FetchError(
            f"role_arn {settings.role_arn} needs somebody to assume it, and no AWS credentials were found; "
            "give access_key_id and secret_access_key"
        )
    return _in_role(settings.role_arn, found, endpoint, region)


def _in_role(role: str, source: Any, endpoint: str | None, region: str) -> Any:
    from botocore import credentials

    fetcher = credentials.AssumeRoleCredentialFetcher(
        lambda _name, **_keys: _client("sts", endpoint, region, source),
        credentials.Credentials(source.access_key, source.secret_key) if isinstance(source, _Given) else source,
        role,
        extra_args={"RoleSessionName": _SESSION},
    )
    return _checked(role, credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role"))


def _by_token(role: str, token: str, endpoint: str | None, region: str) -> Any:
    from botocore import credentials, utils

    fetcher = credentials.AssumeRoleWithWebIdentityCredentialFetcher(
        lambda _name, **_keys: _client("sts", endpoint, region, None),
        utils.FileWebIdentityTokenLoader(token),
        role,
        extra_args={"RoleSessionName": os.environ.get("AWS_ROLE_SESSION_NAME", _SESSION)},
    )
    return _checked(role, credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "web-identity"))


def _checked(role: str, found: Any) -> Any:
    """Assume the role now: what is wrong with it is told better here than inside obstore."""
    try:
        found.get_frozen_credentials()
    except Exception as error:
        if "AccessDenied" in str(error):
            why = "these credentials may not assume it; they need sts:AssumeRole, and its trust policy must name them"
            raise FetchError(f"role {role}: {why}") from error
        raise errors.explained(error, f"role {role}") from error
    return found


def _client(service: str, endpoint: str | None, region: str, found: Any) -> Any:
    """Return botocore's client. The STS of storage that is not AWS's is the storage itself."""
    from botocore import UNSIGNED, credentials, session
    from botocore.config import Config  # type: ignore[import-untyped]

    own = session.Session()
    if isinstance(found, _Given):
        found = credentials.Credentials(found.access_key, found.secret_key)
    if found is not None:
        own._credentials = found  # what aiobotocore and s3fs do: there is no public way
    aws = endpoint is None or urlsplit(endpoint).netloc.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    return own.create_client(
        service,
        region_name=region,
        endpoint_url=None if service == "sts" and aws else endpoint,
        config=Config(
            **({} if found is not None else {"signature_version": UNSIGNED}), s3={"addressing_style": "path"}
        ),
    )


def _provider(found: Any) -> Callable[[], S3Credential]:
    def credential() -> S3Credential:
        now = found.get_frozen_credentials()
        renewed = datetime.now(timezone.utc) + _ASK_AGAIN if hasattr(found, "refresh_needed") else None
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": renewed,
        }

    return credential


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
