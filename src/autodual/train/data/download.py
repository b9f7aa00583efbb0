"""A download that goes on where it was cut."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autodual.train.data.store import CHUNK, Progress, SourceError, remove

ATTEMPTS = 3
TIMEOUT = 30  # seconds without a byte


class _CutError(SourceError):
    """The connection ended early; what came is kept."""


def download(url: str, part: Path, limit: int, progress: Progress | None = None) -> None:
    """All of the file at `url` in `part`, which may hold its beginning; what came of a cut download is kept there.

    More than `limit` bytes are not accepted. The contents are for the caller to check.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _receive(url, part, limit, progress)
        except _CutError:
            if attempt == ATTEMPTS:
                raise


def _receive(url: str, part: Path, limit: int, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    response = _open(url, part, have)
    if response is None:
        return
    with response:
        done = have if response.status == 206 else 0  # 200: the server sends all of it again
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None and length.isdigit() else None
        with part.open("ab" if done else "wb") as out:
            for chunk in _chunks(response):
                done += len(chunk)
                if done > limit:
                    remove(part)
                    raise SourceError(f"more than {limit} bytes came, which cannot be the file")
                out.write(chunk)
                if progress is not None:
                    progress(part.name.removesuffix(".part"), done, total)
    if total is not None and done < total:
        raise _CutError(f"the connection was cut after {done} of {total} bytes")


def _open(url: str, part: Path, have: int) -> Any:
    """The response, from byte `have` on if the server can; None where `part` is complete."""
    headers = {"User-Agent": "autodual"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # nothing after byte `have`
                if error.headers.get("Content-Range") == f"bytes */{have}":
                    return None
                remove(part)
                raise _CutError("what was there of it was too long; run again") from error
            raise SourceError(f"the server answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:  # urllib.error.URLError is an OSError
        raise SourceError(f"cannot be reached ({getattr(error, 'reason', error)})") from error
    if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        response.close()
        remove(part)
        raise _CutError("the server sent another part than the one asked for; run again")
    return response


def _chunks(response: Any) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _CutError(f"the connection was cut ({error})") from error
        if not chunk:
            return
        yield chunk
