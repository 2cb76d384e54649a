# Rows of consumequeues, index entries and their chains, made of what messages lead to.

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define rmqctl_soon(at) __builtin_prefetch(at, 1)
    #else
    #define rmqctl_soon(at) ((void)0)
    #endif
    """
    void rmqctl_soon(const void *at) noexcept nogil  # brings memory near, and touches none

cdef enum:
    AHEAD = 24  # entries whose slots are fetched before their turn: they lie all over the table

cdef enum:  # rows of the columns that `arrange_rows` fills
    ROW_ORDER, ROW_OFFSET, ROW_END, ROW_COLUMNS


def arrange_rows(const int64_t[::1] queue, const int64_t[::1] offset,
                 const int64_t[::1] physical, const int64_t[::1] length,
                 const int64_t[::1] tags, int64_t[:, ::1] place, uint8_t[::1] units,
                 int64_t[:, ::1] columns, uint8_t[::1] breaks):
    """Consumequeue units by queue, and in each queue in the order they are given.

    ``queue``: the number of each row's queue; ``place`` (int64 [2, queues]) comes as zeros.
    ``units`` takes the bytes (spec: consumequeue.md §3), ``columns`` (int64 [3, n]) for each unit
    the number of its row, its queue offset and the end of its record. ``breaks`` takes 1 where a
    run begins: rows of one queue that follow each other in the queue and in the log; else 0.
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
    """Index entries in put order, each linked to the one before in its slot (index.md §6).

    ``key_row``: the message of each key, whose ``physical`` offset and ``store_time`` (ms) its
    entry has. ``count`` is the header's before the first of them, ``begin`` its begin timestamp:
    the first entry of a file counts from the end of the file before, and the others from the
    first. ``table`` are the slots as they lie in the file, ``dirty`` takes 1 for each part of
    1 << page_bits bytes of the file with a slot that changed. ``entries`` takes the bytes. Gives
    how many slots were empty.
    """
    cdef Py_ssize_t row, message, slot
    cdef uint32_t slots = <uint32_t>table.shape[0]
    cdef int64_t fresh = 0, hashed, previous, leads, seconds
    cdef uint8_t *first = &entries[0] if entries.shape[0] else NULL
    cdef uint8_t *entry
    cdef uint8_t *cell
    if entries.shape[0] // ENTRY_SIZE != key_hash.shape[0] or not 0 < table.shape[0] <= 0x7FFFFFFF:
        raise ValueError("columns have another shape")
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
