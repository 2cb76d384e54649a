# Rows of consumequeues, index entries and their chains, made of what messages lead to.

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define rmqctl_soon(at) __builtin_prefetch(at, 1)
    #define rmqctl_soon_read(at) __builtin_prefetch(at)
    #else
    #define rmqctl_soon(at) ((void)0)
    #define rmqctl_soon_read(at) ((void)0)
    #endif
    """
    # Bring memory near, to be written or to be read, and touch none.
    void rmqctl_soon(const void *at) noexcept nogil
    void rmqctl_soon_read(const void *at) noexcept nogil

cdef enum:
    AHEAD = 24  # entries whose slots are fetched before their turn: they lie all over the table


cdef inline bint named(const uint8_t *part, int64_t count, const uint8_t[::1] name) noexcept nogil:
    """Return whether a part of ``count`` bytes begins with a (nonempty) name and is longer than the
    name.
    """
    return (count > name.shape[0] and part[0] == (&name[0])[0]
            and not memcmp(part, &name[0], <size_t>name.shape[0]))


cdef inline int64_t odd_text(int64_t at, int64_t count) noexcept nogil:
    """Return a mark in place of the hash of a text that is not ASCII: its position and length, with
    a bit that no hash has.
    """
    return (<int64_t>1 << 62) | at << 16 | count


def leads(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
          const uint8_t[::1] tags_name, const uint8_t[::1] unique_name,
          const uint8_t[::1] keys_name, const uint8_t[::1] other_name, uint8_t separator,
          const int64_t[::1] topic, const int64_t[::1] sharp, bint keyed, int64_t[::1] tags,
          int64_t[:, ::1] keys):
    """Compute tags hashes and index keys from the properties strings data[start:start + length], in
    one pass over each string.

    Each name includes the separator before the value. ``tags`` receives the hash of each message's
    tags, 0 without tags. With ``keyed``, ``keys`` (int64 [2, n]) receives message and hash of each
    index entry in index order: for the unique key, then for each of the keys between spaces;
    ``topic`` is the number of each message's topic, ``sharp`` the hash of ``topic#`` for each topic
    number. A text that is not ASCII has 1 << 62 | start << 16 | length instead of its hash. Returns
    (number of keys, which may be more than there is space for; number of texts that are not ASCII;
    whether a part begins with ``other_name``).
    """
    cdef int64_t size = data.shape[0], room = keys.shape[1], at, stop, end, count = 0, odd = 0
    cdef int64_t tags_at, tags_count, unique_at, unique_count, keys_at, keys_count
    cdef int64_t key_at, key_count, value
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef const uint8_t *mark
    cdef Py_ssize_t number
    cdef uint32_t base, hashed
    cdef uint8_t bits
    cdef bint others = False
    if (keys.shape[0] != 2 or size >= 1 << 46 or not tags_name.shape[0]
            or not unique_name.shape[0] or not keys_name.shape[0] or not other_name.shape[0]):
        raise ValueError("columns have another shape")
    with nogil:
        for number in range(start.shape[0]):
            within(start[number], length[number], size)  # the range test for all reads below
            if length[number] > 0xFFFF:
                raise ValueError("longer than properties can be")
            at = start[number]
            stop = at + length[number]

            # The last value of each name counts; an empty one is none.
            tags_at = tags_count = unique_at = unique_count = keys_at = keys_count = 0
            while at < stop:
                mark = <const uint8_t *>memchr(first + at, separator, <size_t>(stop - at))
                end = mark - first if mark != NULL else stop
                if named(first + at, end - at, keys_name):
                    keys_at = at + keys_name.shape[0]
                    keys_count = end - keys_at
                elif named(first + at, end - at, unique_name):
                    unique_at = at + unique_name.shape[0]
                    unique_count = end - unique_at
                elif named(first + at, end - at, tags_name):
                    tags_at = at + tags_name.shape[0]
                    tags_count = end - tags_at
                elif named(first + at, end - at, other_name):
                    others = True
                at = end + 1

            tags[number] = 0
            if tags_count:
                bits = 0
                tags[number] = <int32_t>hashed_on(0, first + tags_at, tags_count, &bits)
                if bits & 0x80:
                    tags[number] = odd_text(tags_at, tags_count)
                    odd += 1
            if not keyed or not (unique_count or keys_count):
                continue

            # The unique key as a whole, and then the keys part by part.
            base = <uint32_t>sharp[topic[number]]
            at, stop = keys_at, keys_at + keys_count
            while unique_count or at < stop:
                if unique_count:
                    key_at, key_count, unique_count = unique_at, unique_count, 0
                else:
                    mark = <const uint8_t *>memchr(first + at, SPACE, <size_t>(stop - at))
                    end = mark - first if mark != NULL else stop
                    key_at, key_count = at, end - at
                    at = end + 1
                    if not key_count:
                        continue
                if count < room:
                    bits = 0
                    hashed = hashed_on(base, first + key_at, key_count, &bits)
                    # Java's abs of the least number is negative, and counts as 0.
                    value = <int32_t>hashed
                    if value < 0:
                        value = 0 if value == -0x80000000 else -value
                    if bits & 0x80:
                        value = odd_text(key_at, key_count)
                        odd += 1
                    keys[0, count] = number
                    keys[1, count] = value
                count += 1
    return count, odd, others


cdef enum:  # rows of the columns that `arrange_rows` fills
    ROW_ORDER, ROW_OFFSET, ROW_END, ROW_COLUMNS


def arrange_rows(const int64_t[::1] queue, const int64_t[::1] offset,
                 const int64_t[::1] physical, const int64_t[::1] length,
                 const int64_t[::1] tags, int64_t[:, ::1] place, uint8_t[::1] units,
                 int64_t[:, ::1] columns, uint8_t[::1] breaks):
    """Write consume queue units by queue, and within each queue in the given order.

    ``queue``: the number of each row's queue; ``place`` (int64 [2, queues]) must contain zeros.
    ``units`` receives the bytes (spec: consumequeue.md §3), ``columns`` (int64 [3, n]) for each
    unit the number of its row, its queue offset and the end of its record. ``breaks`` receives 1
    for the first row of a run, else 0: a run consists of rows of one queue that are consecutive in
    the queue and in the log.
    """
    cdef Py_ssize_t row, to, number, count = queue.shape[0]
    cdef uint8_t *first_unit = &units[0] if units.shape[0] else NULL
    cdef uint8_t *unit
    cdef int64_t begin = 0, end
    if (place.shape[0] != 2 or columns.shape[0] != ROW_COLUMNS or columns.shape[1] != count
            or units.shape[0] // UNIT_SIZE != count):
        raise ValueError("columns have another shape")
    with nogil:
        for row in range(count):
            place[1, queue[row]] += 1
        for number in range(place.shape[1]):
            place[0, number] = begin
            begin += place[1, number]
            place[1, number] = place[0, number]
        for row in range(count):
            number = queue[row]
            to = place[1, number]
            place[1, number] += 1
            end = <int64_t>(<uint64_t>physical[row] + <uint64_t>length[row])
            # The index is checked here, and the room for as many units was above.
            columns[ROW_ORDER, to] = row
            columns[ROW_OFFSET, to] = offset[row]
            columns[ROW_END, to] = end
            unit = first_unit + to * UNIT_SIZE
            write_i64(unit + UNIT_PHYSICAL_OFFSET_AT, physical[row])
            write_u32(unit + UNIT_SIZE_AT, <uint32_t>length[row])
            write_i64(unit + UNIT_TAGS_CODE_AT, tags[row])
            breaks[to] = to == place[0, number] or (
                <uint64_t>offset[row] != <uint64_t>columns[ROW_OFFSET, to - 1] + 1) or (
                end <= columns[ROW_END, to - 1])


def link_entries(const int64_t[::1] key_hash, const int64_t[::1] key_row,
                 const int64_t[::1] physical, const int64_t[::1] store_time, int64_t count,
                 int64_t begin, int32_t[::1] table, uint8_t[::1] dirty, int page_bits,
                 uint8_t[::1] entries):
    """Write index entries in put order, each linked to the previous entry of its slot (index.md
    §6).

    ``key_row``: the message of each key; its entry contains the message's ``physical`` offset and
    ``store_time`` (ms). ``count`` is the header's count before the first of the entries, ``begin``
    its begin timestamp: the first entry of a file counts from the end of the previous file, and the
    others from the first entry. ``table`` has the slots as in the file; ``dirty`` receives 1 for
    each part of 1 << page_bits bytes of the file with a changed slot. ``entries`` receives the
    bytes. Returns the number of slots that were empty.
    """
    cdef Py_ssize_t row, message, slot
    cdef uint32_t slots = <uint32_t>table.shape[0]
    cdef int64_t fresh = 0, hashed, previous, leads, seconds
    cdef uint8_t *first = &entries[0] if entries.shape[0] else NULL
    cdef uint8_t *entry
    cdef uint8_t *cell
    if entries.shape[0] // ENTRY_SIZE != key_hash.shape[0] or not 0 < table.shape[0] <= 0x7FFFFFFF:
        raise ValueError("columns have another shape")
    if not 0 <= page_bits < 63:  # a shift by other numbers is undefined in C
        raise ValueError("parts of another size")
    with nogil:
        for row in range(key_hash.shape[0]):  # as many as there is room for
            if row + AHEAD < key_hash.shape[0]:
                rmqctl_soon(&table[<uint32_t>key_hash[row + AHEAD] % slots])
            message, hashed = key_row[row], key_hash[row]
            if not 0 <= hashed <= 0x7FFFFFFF:
                raise ValueError("no hash of an index key")
            slot = <uint32_t>hashed % slots
            cell = <uint8_t *>&table[slot]  # the range test for its four bytes

            # A slot that leads to no entry of the file is empty.
            previous = read_i32(cell)
            leads = (previous > 0) & (previous <= count)
            previous &= -leads
            fresh += 1 - leads
            write_u32(cell, <uint32_t>count)
            dirty[(INDEX_HEADER_SIZE + slot * SLOT_SIZE) >> page_bits] = 1

            # Whole seconds since the file's begin, as far as 31 bits reach.
            seconds = 0
            if begin > 0:
                seconds = <int64_t>(<uint64_t>store_time[message] - <uint64_t>begin) // 1000
                seconds = 0 if seconds < 0 else min(seconds, <int64_t>0x7FFFFFFF)
            if count <= 1:
                begin = store_time[message]

            entry = first + row * ENTRY_SIZE
            write_u32(entry + ENTRY_KEY_HASH_AT, <uint32_t>hashed)
            write_i64(entry + ENTRY_PHYSICAL_OFFSET_AT, physical[message])
            write_u32(entry + ENTRY_TIME_DIFF_AT, <uint32_t>seconds)
            write_u32(entry + ENTRY_PREVIOUS_AT, <uint32_t>previous)
            count += 1
    return fresh


# -- index files of a tier (tiered.md §5.2 and §5.3) ----------------------------------------------

cdef enum:
    TOGETHER = 256  # items whose slots are fetched before their turn


cdef inline int32_t slot_of(const uint8_t *item, int32_t slots) noexcept nogil:
    """Return the slot of an item, from its hash."""
    cdef int32_t slot = read_i32(item + ITEM_KEY_HASH_AT) % slots
    return slot + slots if slot < 0 else slot


def count_items(const uint8_t[::1] items, int64_t number, int32_t[:, ::1] cells):
    """Count items of an open file, the first of which has this number. A slot's cell contains the
    newest of its items (0: none) and the number of its items.

    Returns whether each item points to the previous item of its slot, or to none if it is the
    first.
    """
    cdef Py_ssize_t block, first, row, count = items.shape[0] // ITEM_SIZE
    cdef int32_t slot[TOGETHER]
    cdef int32_t slots = <int32_t>cells.shape[0]
    cdef int32_t *cell
    cdef bint sound = True
    if (cells.shape[1] != 2 or not 0 < cells.shape[0] <= 0x7FFFFFFF
            or not 0 < number <= 0x7FFFFFFF - count):
        raise ValueError("columns have another shape")
    with nogil:
        for block in range((count + TOGETHER - 1) // TOGETHER):
            first = block * TOGETHER
            for row in range(first, min(first + TOGETHER, count)):
                slot[row - first] = slot_of(&items[row * ITEM_SIZE], slots)  # whole ones only
                rmqctl_soon(&cells[slot[row - first], 0])
            for row in range(first, min(first + TOGETHER, count)):
                cell = &cells[slot[row - first], 0]  # the range test for both of its numbers
                sound &= max(read_i32(&items[row * ITEM_SIZE] + ITEM_PREVIOUS_AT), 0) == cell[0]
                cell[0] = <int32_t>(number + row)
                cell[1] += 1
    return sound


def place_items(const uint8_t[::1] items, int32_t[::1] ends, int64_t low, int64_t high,
                int64_t begin, uint8_t[::1] out):
    """Write the items of an open file whose slots are in ``[low, high)``, without their links, to
    their positions: each before the end of its slot, which is moved accordingly. ``out`` begins at
    position ``begin``; items at other positions are omitted.
    """
    cdef Py_ssize_t block, first, row, some, count = items.shape[0] // ITEM_SIZE
    cdef Py_ssize_t chosen[TOGETHER]
    cdef int64_t to[TOGETHER]
    cdef int64_t room = out.shape[0] // COMPACTED_ITEM_SIZE
    cdef int32_t slot, slots = <int32_t>ends.shape[0]
    cdef uint8_t *target = &out[0] if room else NULL
    if not 0 < ends.shape[0] <= 0x7FFFFFFF:
        raise ValueError("columns have another shape")
    with nogil:
        for block in range((count + TOGETHER - 1) // TOGETHER):
            first = block * TOGETHER
            some = 0
            for row in range(first, min(first + TOGETHER, count)):
                slot = slot_of(&items[row * ITEM_SIZE], slots)  # whole ones only
                chosen[some], to[some] = row, slot
                some += (low <= slot) & (slot < high)  # no branch: nothing foretells it
            for row in range(some):
                rmqctl_soon(&ends[to[row]])
            for row in range(some):
                ends[to[row]] -= 1
                to[row] = ends[to[row]] - begin
                if 0 <= to[row] < room:
                    rmqctl_soon(target + to[row] * COMPACTED_ITEM_SIZE)
            for row in range(some):
                if 0 <= to[row] < room:  # the range test for the copy
                    memcpy(target + to[row] * COMPACTED_ITEM_SIZE,
                           &items[chosen[row] * ITEM_SIZE], COMPACTED_ITEM_SIZE)
