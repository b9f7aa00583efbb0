"""Data sets that are known by name, in small, from places on this machine."""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from autodual.data.known import KNOWN, DataFile, KnownData

Publish = Callable[..., KnownData]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Publish:
    """publish(name, files, web=..., npm=..., debian=...) changes what the name stands for."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def change(name: str, files: dict[str, bytes], **sources: object) -> KnownData:
        listed = tuple(DataFile(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in files.items())
        data = replace(KNOWN[name], files=listed, **{"web": (), "npm": "", "debian": "", **sources})
        monkeypatch.setitem(KNOWN, name, data)
        return data

    return change
