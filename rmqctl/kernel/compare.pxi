# The chains of index entries, held against what they must be.


def entry_slots(const uint8_t[::1] page, int64_t slots, int32_t[::1] slot_of):
    """Write the slot of each entry of a page to ``slot_of``; return whether no hash is negative."""
    cdef Py_ssize_t row
    cdef int32_t value
    cdef bint sound = slots > 0
    with nogil:
        if sound:
            for row in range(min(slot_of.shape[0], page.shape[0] // ENTRY_SIZE)):
                value = read_i32(&page[row * ENTRY_SIZE] + ENTRY_KEY_HASH_AT)
                sound &= value >= 0
                slot_of[row] = <int32_t>(value % slots)
    return sound


def entry_links(const uint8_t[::1] page, int64_t number, const int32_t[::1] slot_of,
                uint8_t[::1] seen):
    """Return the number of entries in a page that point to an older entry.

    The first entry of the page has this ``number``. ``slot_of`` has the slots of all entries by
    number, ``seen`` receives 1 for each entry that another one points to. Returns -1 if an entry
    points to an entry that is not older, is in another slot, or was already seen.
    """
    cdef Py_ssize_t row
    cdef int64_t links = 0, previous
    with nogil:
        for row in range(page.shape[0] // ENTRY_SIZE):
            previous = read_i32(&page[row * ENTRY_SIZE] + ENTRY_PREVIOUS_AT)
            if not previous:
                continue
            if previous < 0 or previous >= number + row or (
                    slot_of[previous] != slot_of[number + row]) or seen[previous]:
                links = -1
                break
            seen[previous] = 1
            links += 1
    return links


def slot_heads(const uint8_t[::1] page, int64_t slot, int64_t entries,
               const int32_t[::1] slot_of, uint8_t[::1] seen):
    """Return the number of slots in a page that point to an entry: see `entry_links`.

    ``slot`` is the number of the first slot of the page. Returns -1 if a slot points to no entry of
    the ``entries``, or to an entry that is in another slot or was already seen.
    """
    cdef Py_ssize_t row
    cdef int64_t used = 0, head
    with nogil:
        for row in range(page.shape[0] // SLOT_SIZE):
            head = read_i32(&page[row * SLOT_SIZE])
            if not head:
                continue
            if head < 0 or head > entries or slot_of[head] != slot + row or seen[head]:
                used = -1
                break
            seen[head] = 1
            used += 1
    return used
