"""Memory that is used again: only once nobody looks at it."""

from __future__ import annotations

import random
import threading

import numpy as np

from rmqctl.ext.tiered.dispatch.buffer_pool import WindowBuffers


def address(view) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def test_a_room_comes_back_with_its_last_view():
    rooms = WindowBuffers()
    first = rooms.take(3 << 20)
    place, part = address(first), first[10:20]
    del first
    assert address(rooms.take(3 << 20)) != place
    array = np.frombuffer(part, np.uint8)
    del part
    assert all(address(rooms.take(1000)) != place - 10 for _ in range(3))
    del array
    assert address(rooms.take(100)) == place


def test_one_that_is_too_small_is_given_up():
    rooms = WindowBuffers()
    small = rooms.take(1)
    del small
    large = rooms.take(5 << 20)
    assert len(large) == 5 << 20
    large[-1] = 1


def test_what_is_held_stays_as_it_was(seed):
    """Views that live for different times, some of them dropped by other threads."""
    rooms, chance = WindowBuffers(), random.Random(seed)
    held: list[tuple[memoryview, int]] = []
    for number in range(300):
        view = rooms.take(chance.choice((1, 4096, 1 << 20, 3 << 20)))
        stamp = number % 251 + 1
        view[:1] = view[-1:] = bytes([stamp])
        held.append((view[-1:], stamp))
        held.append((view[:1], stamp))
        del view
        chance.shuffle(held)
        gone, held = held[12:], held[:12]
        thread = threading.Thread(target=gone.clear)
        thread.start()
        thread.join()
        assert all(buffer[0] == value for buffer, value in held)


def test_nothing_at_all():
    assert len(WindowBuffers().take(0)) == 0
