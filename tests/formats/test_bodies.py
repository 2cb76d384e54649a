"""Compressed bodies: whole ones, cut ones, ones that grow too far."""

from __future__ import annotations

import sys
import zlib

import lz4.frame
import pytest

from rmqctl.formats import bodies

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BODY = b"an order of 40 crates, " * 40
PACKED = {"zlib": zlib.compress(BODY), "lz4": lz4.frame.compress(BODY),
          "zstd": zstd.compress(BODY), "zstd, two frames": zstd.compress(BODY[:7]) + zstd.compress(
              BODY[7:])}


@pytest.mark.parametrize("name", PACKED)
def test_a_cut_body_is_shown_as_stored_and_said(name: str) -> None:
    codec, packed = name.partition(",")[0], PACKED[name]
    assert bodies.decompressed(codec, packed) == (BODY, None)
    whole = {0, len(zstd.compress(BODY[:7])) if "two" in name else 0}
    for end in set(range(len(packed))) - whole:
        body, problem = bodies.decompressed(codec, packed[:end])
        assert body == packed[:end]
        assert problem is not None
        assert f"marked as {codec}, but " in problem
        assert end < 20 or problem.endswith(("is truncated", "Frame incomplete")), (end, problem)


@pytest.mark.parametrize("more", [0, 1])
def test_a_body_may_grow_up_to_the_bound(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(bodies, "MAX_DECOMPRESSED", 1 << 20)
    body = bytes((1 << 20) + more)
    for codec, packed in (("zstd", zstd.compress(body)), ("lz4", lz4.frame.compress(body)),
                          ("zlib", zlib.compress(body))):
        data, problem = bodies.decompressed(codec, packed)
        assert (problem is None) == (not more), (codec, problem)
        assert len(data) == (len(packed) if more else len(body))
