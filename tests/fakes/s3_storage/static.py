"""A folder served as a bucket that can be read: ListObjectsV2, HEAD and GET with ranges, nothing else.

`python -m s3_storage.static FOLDER` serves it under any bucket's name and prints its URL. Etags are what S3 gives: the
MD5 of an object uploaded at once, the MD5 of the parts' MD5s of a larger one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from xml.sax.saxutils import escape

from aiohttp import web

#: What the AWS command line uploads at once, and in parts of this size when it is more.
PART = 8 * 2**20
_PAGE = 1000


class Folder:
    """The objects of a bucket: the files of a folder, as they are when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _paths(self) -> dict[str, Path]:
        return {path.relative_to(self._folder).as_posix(): path for path in self._folder.rglob("*") if path.is_file()}

    @cached_property
    def _etags(self) -> dict[str, str]:
        return {key: f'"{etag(path)}"' for key, path in self._paths.items()}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {key: path.stat().st_size for key, path in self._paths.items()}

    @cached_property
    def _small(self) -> dict[str, bytes]:
        return {key: path.read_bytes() for key, path in self._paths.items() if self._sizes[key] < PART}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info.get("key")
        if not key:
            return self._list(request.query)
        if key not in self._paths:
            return web.Response(
                status=404, text="<Error><Code>NoSuchKey</Code></Error>", content_type="application/xml"
            )
        headers = {"ETag": self._etags[key], "Last-Modified": "Sat, 01 Nov 2025 00:00:00 GMT"}
        size = self._sizes[key]
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(size)})
        asked = request.http_range
        if key in self._small and asked.start is None:
            return web.Response(body=self._small[key], headers=headers)
        start, stop, _ = asked.indices(size)
        if asked.start is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return await self._send(request, headers, self._paths[key], start, stop)

    async def _send(
        self, request: web.Request, headers: dict[str, str], path: Path, start: int, stop: int
    ) -> web.StreamResponse:
        """Send a part of a file from the kernel's cache, without a copy of it in this process."""
        response = web.StreamResponse(status=206 if "Content-Range" in headers else 200, headers=headers)
        response.content_length = stop - start
        await response.prepare(request)
        with path.open("rb") as file:
            await asyncio.get_running_loop().sendfile(request.transport, file, start, stop - start)
        await response.write_eof()
        return response

    def _list(self, query: Mapping[str, str]) -> web.Response:
        prefix, after = query.get("prefix", ""), query.get("continuation-token") or query.get("start-after", "")
        keys = [key for key in sorted(self._paths) if key.startswith(prefix) and key > after]
        page, more = keys[:_PAGE], len(keys) > _PAGE
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2025-11-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(self._etags[key])}</ETag><Size>{self._sizes[key]}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount><MaxKeys>{_PAGE}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
        )
        return web.Response(text=text, content_type="application/xml")


def etag(path: Path) -> str:
    """Return the etag that S3 gives a file which the AWS command line uploads."""
    with path.open("rb") as file:
        parts = [hashlib.md5(part, usedforsecurity=False) for part in iter(lambda: file.read(PART), b"")]
    if len(parts) < 2:
        return parts[0].hexdigest() if parts else hashlib.md5(b"", usedforsecurity=False).hexdigest()
    whole = hashlib.md5(b"".join(part.digest() for part in parts), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(parts)}"


def app(folder: Path) -> web.Application:
    """Return the application that serves a folder as a bucket of any name."""
    made, bucket = web.Application(), Folder(folder)
    made.router.add_route("*", "/{bucket}/{key:.*}", bucket.answer)
    made.router.add_route("*", "/{bucket}", bucket.answer)
    return made


if __name__ == "__main__":
    web.run_app(app(Path(sys.argv[1])), host="127.0.0.1", port=int(os.environ.get("PORT", "0")), access_log=None)
