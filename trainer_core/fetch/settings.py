"""Settings of an initializer step, read from the environment variables of Trainer's initializers.

On a cluster the variables have their plain names (``STORAGE_URI``, ``REGION``). A local process inherits the
environment of the user, where ``REGION`` may mean something else: there each variable has the prefix
``TRAINJOB_INITIALIZE_``, and the plain names are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer_core.fetch.source import FetchError

ENV_PREFIX = "TRAINJOB_INITIALIZE_"
ROLES = ("dataset", "model")


@dataclass(frozen=True)
class FetchSettings:
    """What to fetch, and with which credentials."""

    #: ``dataset`` or ``model``.
    role: str
    uri: str
    ignore: tuple[str, ...] = ()
    #: Create symbolic links to the source's files instead of copies; ``file://`` only.
    link: bool = False
    #: Token of the HuggingFace Hub.
    access_token: str | None = field(default=None, repr=False)
    #: URL of S3-compatible storage; None for AWS.
    endpoint: str | None = None
    #: None for the credentials that botocore finds where the step runs.
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    region: str | None = None
    role_arn: str | None = None

    @property
    def scheme(self) -> str:
        """The scheme of the URI, without ``://``."""
        return self.uri.partition("://")[0]

    @classmethod
    def from_env(cls, role: str, env: Mapping[str, str]) -> FetchSettings:
        """Read the settings from environment variables; an empty variable counts as unset."""
        prefix = ENV_PREFIX if ENV_PREFIX + "STORAGE_URI" in env else ""

        def read(name: str) -> str | None:
            return env.get(prefix + name, "").strip() or None

        uri = read("STORAGE_URI")
        if uri is None:
            raise FetchError(f"STORAGE_URI is not set; set it to the URI of the {role}, such as s3://bucket/{role}")
        if "://" not in uri:
            raise FetchError(f"STORAGE_URI must be a URI such as s3://bucket/{role}, got {uri!r}")
        return cls(
            role=role,
            uri=uri,
            ignore=tuple(each.strip() for each in (read("IGNORE_PATTERNS") or "").split(",") if each.strip()),
            link=read("LINK") is not None,
            access_token=read("ACCESS_TOKEN"),
            endpoint=read("ENDPOINT"),
            access_key_id=read("ACCESS_KEY_ID"),
            secret_access_key=read("SECRET_ACCESS_KEY"),
            region=read("REGION"),
            role_arn=read("ROLE_ARN"),
        )
