"""What only storage itself can say of an object, asked when its etag and its bytes do not agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Upload", "look"]

_OF_S3 = "AES256"


@dataclass(frozen=True)
class Upload:
    """How an object was uploaded.

    Attributes:
        part_size: Bytes of its first part; None where the storage does not say.
        encrypted: With keys of the user's: its etag is no checksum then.
    """

    part_size: int | None
    encrypted: bool


def look(client: Any, bucket: str, key: str, size: int) -> Upload:
    """Ask how an object was uploaded; what the storage does not answer is not known.

    Args:
        client: botocore's for S3.
        bucket: Its bucket.
        key: Its key.
        size: Its bytes; a part of this size means that the storage knows no parts.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # the client's own

    try:
        told = client.head_object(Bucket=bucket, Key=key, PartNumber=1)
    except (BotoCoreError, ClientError):
        # Not every storage can say it.
        return Upload(None, encrypted=False)
    length = int(told["ContentLength"])
    encryption = told.get("ServerSideEncryption", _OF_S3)
    encrypted = encryption != _OF_S3 or "SSECustomerAlgorithm" in told
    return Upload(length if length < size else None, encrypted)
