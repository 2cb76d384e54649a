"""Checks of what web servers return: names in pages that list folders, and ranges of files.

Ranges of objects in S3 are checked, too. The driver accepts every link of a page as a name, and any
response to a range request, even the entire file. This module requires that a link names an entry
of the listed folder, and that a response is the requested range of the listed file. A response that
identifies its object saves a second request.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from rmqctl.errors import StoreIOError

PATIENCE = 60.0
"""Number of seconds without received data after which a request fails."""
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PIECE = 1 << 16
_ERRORS = "surrogateescape"
Answer = tuple[bytes, Mapping[str, str]]
"""The bytes and the headers of a response."""


class NoRangesError(StoreIOError):
    """Error: the server did not send the requested range."""


def is_web(fs: Any) -> bool:
    """Return whether a driver talks to a web server."""
    return "http" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))


def encoded(path: str) -> str:
    """Return a path as part of a URL."""
    return quote(path, errors=_ERRORS)


def name_in(link: str, folder: str) -> str | None:
    """Return the name of the entry of ``folder`` that a link points to; None if it points
    elsewhere.
    """
    start = f"{folder.rstrip('/')}/"
    rest = html.unescape(link)
    if not rest.startswith(start) or "?" in rest or "#" in rest:
        return None
    name = unquote(rest[len(start):].removesuffix("/"), errors=_ERRORS)
    return None if name in ("", ".", "..") or "/" in name else name


def patient(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the driver's options, with a default timeout if they have none."""
    import aiohttp

    of_client = dict(options.get("client_kwargs") or {})
    of_client.setdefault("timeout", aiohttp.ClientTimeout(
        total=None, sock_connect=PATIENCE, sock_read=PATIENCE))
    return {**options, "client_kwargs": of_client}


def read_range(fs: Any, url: str, start: int, end: int, size: int) -> Answer:
    """Read ``[start, end)`` of a file of ``size`` bytes.

    Raises: NoRangesError, exceptions of the driver.
    """
    from fsspec.asyn import sync

    answer: Answer = sync(fs.loop, _read, fs, url, start, end, size)
    return answer


def reads_of_s3(fs: Any) -> bool:
    """Return whether a driver is the S3 driver, which can report the ETag of a response."""
    return hasattr(fs, "_call_s3") and hasattr(fs, "split_path")


def read_s3(fs: Any, path: str, start: int, end: int) -> tuple[bytes, str]:
    """Read ``[start, end)`` of an object: the bytes, and its ETag."""
    from fsspec.asyn import sync

    answer: tuple[bytes, str] = sync(fs.loop, _read_s3, fs, path, start, end)
    return answer


async def _read_s3(fs: Any, path: str, start: int, end: int) -> tuple[bytes, str]:
    bucket, key, version = fs.split_path(path)
    answer = await fs._call_s3(
        "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}",
        **({"VersionId": version} if version else {}), **fs.req_kw)
    async with answer["Body"] as body:
        data: bytes = await body.read()
    return data, str(answer.get("ETag", "")).strip('"')


async def _read(fs: Any, url: str, start: int, end: int, size: int) -> Answer:
    session = await fs.set_session()
    headers = {**fs.kwargs.get("headers", {}), "Range": f"bytes={start}-{end - 1}",
               "Accept-Encoding": "identity"}
    async with session.get(fs.encode_url(url), **{**fs.kwargs, "headers": headers}) as answer:
        fs._raise_not_found_for_status(answer, url)
        # Check the headers before anything is read.
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status == 206 and match is not None:
            if int(match[1]) != start or match[3] not in ("*", str(size)):
                raise NoRangesError(f"the server sent {match[0]!r} of {size:,} bytes for bytes "
                                    f"{start} to {end - 1}")
        elif answer.status != 206 and (start or end != size):
            raise NoRangesError("the server does not serve ranges")
        # Never read more than was requested.
        parts, left = [], end - start
        async for part in answer.content.iter_chunked(_PIECE):
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise NoRangesError("the server sent more than was requested")
        return b"".join(parts), answer.headers
