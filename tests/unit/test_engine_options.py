"""What all engines share."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pytest

from specrig.engines.base import Engine


@pytest.mark.parametrize(("platform", "counted"), [("linux", 300 * 1024), ("darwin", 300 * 1024**2)])
def test_peak_memory_is_in_mebibytes_whatever_the_system_counts_in(
    monkeypatch: pytest.MonkeyPatch, platform: str, counted: int
) -> None:
    """getrusage(2): `ru_maxrss` is in KiB on Linux, in bytes on macOS."""
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=counted))
    assert Engine.peak_memory_mb(SimpleNamespace()) == 300
