# Rows of consumequeues, index entries and their chains, held against what they must be.


def queue_reach(const int64_t[::1] queue, const int64_t[::1] offset, const int64_t[::1] physical,
                int64_t[:, ::1] reach):
    """What the rows of each queue reach: ``reach`` (int64 [4, queues]) takes how many there are,
    their least and greatest queue offset, and the least physical offset.

    The caller has put 0, the greatest, the least and the greatest number there.
    """
    cdef Py_ssize_t row, number
    if reach.shape[0] != 4:
        raise ValueError("reach has another shape")
    with nogil:
        for row in range(queue.shape[0]):
            number = queue[row]
            reach[0, number] += 1
            reach[1, number] = min(reach[1, number], offset[row])
            reach[2, number] = max(reach[2, number], offset[row])
            reach[3, number] = min(reach[3, number], physical[row])


def rows_agree(const int64_t[::1] queue, const int64_t[::1] offset, const int64_t[::1] physical,
               const int64_t[::1] length, const int64_t[::1] tags, const uint8_t[::1] damaged,
               const int64_t[::1] first, const int64_t[::1] begin, const int64_t[::1] count,
               const uint8_t[::1] units, uint8_t[::1] odd):
    """Holds expected rows against the units of their queues (spec: consumequeue.md).

    By the number of a queue: ``count`` units from queue offset ``first`` on stand behind
    ``begin`` others in ``units`` (bytes). ``odd`` gets 1 for each queue of which a row is damaged,
    has no unit, does not agree with it, or does not follow the one before.
    """
    cdef int64_t room = units.shape[0] // UNIT_SIZE, place
    cdef const uint8_t *first_unit = &units[0] if room else NULL
    cdef const uint8_t *unit
    cdef Py_ssize_t row, number
    cdef int64_t[::1] following = first.copy()
    with nogil:
        for row in range(queue.shape[0]):
            number = queue[row]
            if odd[number]:
                continue
            odd[number] = 1
            place = offset[row] - first[number]
            if damaged[row] or offset[row] != following[number] or not 0 <= place < count[number]:
                continue
            place += begin[number]
            if not 0 <= place < room:  # the range test for the reads below
                raise IndexError("outside of the units")
            unit = first_unit + place * UNIT_SIZE
            if (read_i64(unit + UNIT_PHYSICAL_OFFSET_AT) == physical[row]
                    and read_i32(unit + UNIT_SIZE_AT) == length[row]
                    and read_i64(unit + UNIT_TAGS_CODE_AT) == tags[row]):
                odd[number] = 0
                following[number] += 1


def entries_agree(const uint8_t[::1] entries, const int64_t[::1] physical,
                  const int64_t[::1] key_hash, const int64_t[::1] store_time, int64_t position,
                  const int64_t[::1] starts, const int64_t[::1] begins):
    """Holds index entries against the keys that they must be of (spec: index.md §2 and §6).

    Entry 0 is number ``position`` of the entries of all files, of which file n has those from
    ``starts[n]`` to ``starts[n + 1]`` and counts its times from ``begins[n]`` (ms). Gives
    whether all lead to their message with its hash and, of these, whether all have its time.
    """
    cdef int64_t room = entries.shape[0] // ENTRY_SIZE, when
    cdef const uint8_t *first = &entries[0] if room else NULL
    cdef const uint8_t *entry
    cdef int32_t seconds
    cdef Py_ssize_t row, file = 0
    cdef bint in_time = True
    if room < physical.shape[0]:
        return False, False
    with nogil:
        for row in range(physical.shape[0]):  # fewer than there are entries
            entry = first + row * ENTRY_SIZE
            if (read_i64(entry + ENTRY_PHYSICAL_OFFSET_AT) != physical[row]
                    or read_i32(entry + ENTRY_KEY_HASH_AT) != key_hash[row]):
                with gil:
                    return False, False
            while position + row >= starts[file + 1]:
                file += 1
            seconds = read_i32(entry + ENTRY_TIME_DIFF_AT)
            when = begins[file] + <int64_t>seconds * 1000
            if when > store_time[row] or when <= store_time[row] - 1000:
                # A clock that was set back: what is older than the file's begin counts from it.
                in_time &= seconds == 0 and store_time[row] <= when
    return True, in_time


def entry_slots(const uint8_t[::1] page, int64_t slots, int32_t[::1] slot_of):
    """The slot of each entry of a page; gives whether no hash is negative."""
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
    """How many entries of a page, whose first has this number, lead to an older one.

    By number: ``slot_of`` has the slots of all entries, ``seen`` gets 1 for those that are led to.
    -1 where one leads to an entry that is not older, or of another slot, or seen before.
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
    """How many slots of a page, whose first has this number, lead to an entry: see `entry_links`.

    -1 where one leads to none of the ``entries``, to one of another slot, or seen before.
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
