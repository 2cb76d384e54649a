"""`sha256_pair` of the kernel against hashlib."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from rmqctl.backup import sums
from rmqctl.kernel import active

pytestmark = pytest.mark.skipif(active() is None or not active().SHA256_PAIRS,
                                reason="no kernel, or no instructions for SHA-256")


def padded(text):
    blocks = bytearray(text + bytes(2 * 64))
    return bytes(blocks[:sums._pad(memoryview(blocks), len(text), len(text))])


@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 1000, 4096])
def test_two_texts_are_hashed_as_by_hashlib(size):
    random = np.random.default_rng(size)
    texts = [random.bytes(size), random.bytes(size)]
    states = np.array(sums._FIRST * 2, np.uint32)
    blocks = [np.frombuffer(padded(text), np.uint8) for text in texts]
    active().sha256_pair(states, *blocks, len(blocks[0]) // 64)
    digests = states.astype(">u4").tobytes()
    assert digests == b"".join(hashlib.sha256(text).digest() for text in texts)


def test_blocks_outside_the_texts_are_refused():
    states, text = np.zeros(16, np.uint32), np.zeros(128, np.uint8)
    for wrong in ((states[:8], text, text, 1), (states, text[:64], text, 2),
                  (states, text, text[:127], 2), (states, text, text, -1)):
        with pytest.raises(IndexError):
            active().sha256_pair(*wrong)
    before = states.copy()
    active().sha256_pair(states, text[:0], text[:0], 0)
    assert (states == before).all()
