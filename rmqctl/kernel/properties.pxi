# Properties strings and other texts: cut, found, packed, looked up, hashed as keys.

from libc.string cimport memchr, memcmp

cdef enum:
    SPACE = 32


def cut(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
        uint8_t separator, bint ended, bint keep_empty, int64_t[:, ::1] parts):
    """Find the parts between separators of the texts data[start:start + length].

    With ``ended``, each part ends with a separator, so nothing follows the last one; else
    separators are between parts. Empty parts are omitted unless ``keep_empty``. ``parts`` (int64
    [3, n]) receives the number of the text, and start and length of each part. Returns the number
    of parts, which may be more than ``parts`` has space for.

    Raises: IndexError if a text is not inside data.
    """
    cdef int64_t size = data.shape[0], room = parts.shape[1]
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef const uint8_t *mark
    cdef int64_t count = 0, at, stop, end
    cdef Py_ssize_t number
    if parts.shape[0] != 3:
        raise ValueError("parts have another shape")
    with nogil:
        for number in range(start.shape[0]):
            within(start[number], length[number], size)
            at = start[number]
            stop = at + length[number]
            while at < stop or (at == stop and not ended):
                mark = NULL
                if at < stop:  # the range test: at to stop lies inside of data
                    mark = <const uint8_t *>memchr(first + at, separator, <size_t>(stop - at))
                end = mark - first if mark != NULL else stop
                if end > at or keep_empty:
                    if count < room:
                        parts[0, count] = number
                        parts[1, count] = at
                        parts[2, count] = end - at
                    count += 1
                if mark == NULL:
                    break
                at = end + 1
    return count


def find(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
         uint8_t separator, const uint8_t[::1] keys, const int64_t[::1] ends,
         int64_t[:, :, ::1] values, int64_t[::1] counts):
    """Find the values of the parts that begin with a key, text by text; a separator ends a part.

    Key n ends at ``ends[n]`` of ``keys`` and begins at the end of the previous key; no key is
    empty. Empty values are ignored, and the last of several values in a text counts. ``values``
    (int64 [keys, 3, texts]) receives text, start and length of each value, ``counts`` the number of
    values of each key.
    """
    cdef int64_t size = data.shape[0], at, stop, end, count, begin, width
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef const uint8_t *mark
    cdef Py_ssize_t number, key, hits, kinds = ends.shape[0]
    if values.shape[0] != kinds or values.shape[1] != 3 or counts.shape[0] != kinds:
        raise ValueError("values have another shape")
    for key in range(kinds):
        within(ends[key - 1] if key else 0, ends[key] - (ends[key - 1] if key else 0), keys.shape[0])
    with nogil:
        for key in range(kinds):
            counts[key] = 0
        for number in range(start.shape[0]):
            within(start[number], length[number], size)
            at = start[number]
            stop = at + length[number]
            while at < stop:
                mark = <const uint8_t *>memchr(<const void *>(first + at), separator,
                                               <size_t>(stop - at))
                end = mark - first if mark != NULL else stop
                begin = 0
                for key in range(kinds):
                    width = ends[key] - begin
                    # The range test: the part is longer than the key, which lies in its own data.
                    if end - at > width and first[at] == keys[begin] and not memcmp(
                            first + at, &keys[begin], <size_t>width):
                        hits = counts[key]
                        if hits and values[key, 0, hits - 1] == number:
                            hits -= 1
                        values[key, 0, hits] = number
                        values[key, 1, hits] = at + width
                        values[key, 2, hits] = end - at - width
                        counts[key] = hits + 1
                        break
                    begin = ends[key]
                at = end + 1


cdef int64_t character(const uint8_t *first, int64_t left) noexcept nogil:
    """Return the length of the multi-byte UTF-8 character at a pointer to ``left`` bytes; 0 if it
    is not valid.
    """
    cdef uint8_t lead = first[0]
    cdef int64_t length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    cdef int64_t at
    if lead < 0xC2 or lead > 0xF4 or length > left:
        return 0
    for at in range(1, length):
        if first[at] & 0xC0 != 0x80:
            return 0
    # Longer than needed, half of a pair, or beyond the last one.
    if (lead == 0xE0 and first[1] < 0xA0) or (lead == 0xED and first[1] > 0x9F) or (
            lead == 0xF0 and first[1] < 0x90) or (lead == 0xF4 and first[1] > 0x8F):
        return 0
    return length


cdef bint is_text(const uint8_t *first, int64_t size) noexcept nogil:
    """Return whether ``size`` bytes are UTF-8 without a NUL."""
    cdef int64_t at = 0, length
    cdef uint64_t odd = 0, word
    # Eight at a time: a byte from 0x80 on has its high bit set, and the lowest zero byte gets it by
    # the subtraction. Without such bytes the subtraction borrows nothing.
    while at + 8 <= size:
        memcpy(&word, first + at, 8)
        odd |= word | (word - 0x0101010101010101u)
        at += 8
    if at < size and size >= 8:
        memcpy(&word, first + size - 8, 8)
        odd |= word | (word - 0x0101010101010101u)
        at = size
    while at < size:
        odd |= <uint64_t>((first[at] == 0) | (first[at] >> 7)) << 7
        at += 1
    odd &= 0x8080808080808080u
    if not odd:
        return True
    at = 0
    while at < size:
        if first[at] == 0:
            return False
        if first[at] < 0x80:
            at += 1
            continue
        length = character(first + at, size - at)
        if length == 0:
            return False
        at += length
    return True


def unsound(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
            uint8_t[::1] out):
    """Determine which properties strings data[start:start + length] are invalid: not UTF-8, with a
    NUL, or with a nonempty part that has no mark, or no name before the mark.
    """
    cdef int64_t size = data.shape[0], at, stop, end
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef const uint8_t *mark
    cdef Py_ssize_t number
    with nogil:
        for number in range(start.shape[0]):
            within(start[number], length[number], size)
            at = start[number]
            stop = at + length[number]
            out[number] = not is_text(first + at, stop - at) if at < stop else 0
            while at < stop and not out[number]:
                mark = <const uint8_t *>memchr(first + at, 2, <size_t>(stop - at))
                end = mark - first if mark != NULL else stop
                if end > at and (first[at] == 1 or memchr(
                        first + at, 1, <size_t>(end - at)) == NULL):
                    out[number] = 1
                at = end + 1


def pack(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
         uint8_t[::1] out, int64_t at, int64_t[::1] places):
    """Copy the texts data[start:start + length] to out[at:], with a zero after each text.

    ``places`` receives the position of each copy. Returns the position after the last zero.

    Raises: IndexError if a text is not inside data, or if there is not enough space.
    """
    cdef int64_t size = data.shape[0], room = out.shape[0], count
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Py_ssize_t number
    with nogil:
        for number in range(start.shape[0]):
            count = length[number]
            within(start[number], count, size)
            within(at, count + 1, room)
            places[number] = at
            if count:
                memcpy(&out[at], first + start[number], <size_t>count)
            at += count
            out[at] = 0
            at += 1
    return at


def join(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
         uint8_t[::1] out):
    """Copy the parts data[start:start + length] to ``out``, back to back; return the number of
    bytes.

    Raises: IndexError if a part is not inside data, or if there is not enough space.
    """
    cdef int64_t size = data.shape[0], room = out.shape[0], at = 0
    cdef Py_ssize_t row
    with nogil:
        for row in range(start.shape[0]):
            within(start[row], length[row], size)
            within(at, length[row], room)
            if length[row]:
                memcpy(&out[at], &data[start[row]], <size_t>length[row])
            at += length[row]
    return at


cdef inline uint64_t mixed(const uint8_t *text, int64_t count) noexcept nogil:
    """Return a hash of ``count`` bytes. The caller has checked that the bytes exist."""
    cdef uint64_t value = <uint64_t>count * 0x9E3779B97F4A7C15u, word
    while count >= 8:
        memcpy(&word, text, 8)
        value = (value ^ word) * 0xFF51AFD7ED558CCDu
        value ^= value >> 32
        text += 8
        count -= 8
    word = 0
    if count:
        memcpy(&word, text, <size_t>count)
    value = (value ^ word) * 0xC4CEB9FE1A85EC53u
    return value ^ (value >> 29)


cdef inline int64_t cell_of(const uint8_t *text, int64_t count, const uint8_t[::1] known,
                            const int64_t[:, ::1] place, const int32_t[::1] cells) except -1 nogil:
    """Return the cell with the number of a text of ``count`` bytes, or the empty cell for this
    text.

    The caller has checked that the bytes exist. ``place`` has the starts and lengths, in ``known``,
    of the texts in a table.

    Raises: IndexError if no such cell exists, or if a text of the table is not inside ``known``.
    """
    cdef int64_t mask = cells.shape[0] - 1, cell = <int64_t>(mixed(text, count) & <uint64_t>mask)
    cdef int64_t tries
    cdef int32_t number
    for tries in range(mask + 1):
        number = cells[cell]
        if number < 0:
            return cell
        if place[1, number] == count:
            within(place[0, number], count, known.shape[0])
            if not count or not memcmp(&known[place[0, number]], text, <size_t>count):
                return cell
        cell = (cell + 1) & mask
    raise IndexError("a full table")


def enter(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
          Py_ssize_t row, uint8_t[::1] known, int64_t[:, ::1] place, int32_t[::1] cells,
          int64_t[::1] used, int64_t[::1] out):
    """Write the numbers of the texts data[start:start + length], from text ``row`` on; new texts
    are added to the table. ``used``: number of texts in the table, and of bytes of ``known`` in
    use.

    The number of cells is a power of two; empty cells are -1, and at most half of the cells are
    used. Returns the row of the first text without space, else the number of texts.

    Raises: IndexError if a text is not inside data.
    """
    cdef int64_t size = data.shape[0], count, cell
    cdef const uint8_t *first = &data[0] if size else NULL
    if row < 0 or not cells.shape[0] or cells.shape[0] & (cells.shape[0] - 1) or (
            place.shape[0] != 2 or used.shape[0] != 2 or not 0 <= used[0] <= place.shape[1]):
        raise ValueError("a table of another size")
    with nogil:
        while row < start.shape[0]:
            count = length[row]
            within(start[row], count, size)
            cell = cell_of(first + start[row], count, known, place, cells)
            if cells[cell] < 0:
                if (used[0] == place.shape[1] or 2 * used[0] + 2 > cells.shape[0]
                        or count > known.shape[0] - used[1]):
                    break
                within(used[1], count, known.shape[0])
                if count:
                    memcpy(&known[used[1]], first + start[row], <size_t>count)
                place[0, used[0]], place[1, used[0]] = used[1], count
                cells[cell] = <int32_t>used[0]
                used[0] += 1
                used[1] += count
            out[row] = cells[cell]
            row += 1
    return row


def lookup(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
           const uint8_t[::1] known, const int64_t[:, ::1] place, const int32_t[::1] cells,
           int64_t missing, int64_t[::1] out):
    """Write the numbers of the texts data[start:start + length] in a table filled by `enter`;
    ``missing`` for any other text.

    Raises: IndexError if a text is not inside data.
    """
    cdef int64_t size = data.shape[0], cell
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Py_ssize_t row
    if not cells.shape[0] or cells.shape[0] & (cells.shape[0] - 1) or place.shape[0] != 2:
        raise ValueError("a table of another size")
    with nogil:
        for row in range(start.shape[0]):
            within(start[row], length[row], size)
            cell = cell_of(first + start[row], length[row], known, place, cells)
            out[row] = cells[cell] if cells[cell] >= 0 else missing


def index_keys(const uint8_t[::1] data, const int64_t[:, ::1] unique, Py_ssize_t uniques,
               const int64_t[:, ::1] keys, Py_ssize_t keyed, const int64_t[::1] topic,
               const int64_t[::1] sharp, int64_t[:, ::1] out):
    """Find the index keys of messages in index order: the unique key, then each of the keys.

    ``unique`` and ``keys`` (int64 [3, n], as from `find`) are the values of the two properties,
    each with the number of values; the keys of a message are separated by spaces. ``topic``: the
    number of each message's topic; ``sharp``: the hash of ``topic#`` for each topic number. ``out``
    (int64 [3, n]) receives message, hash of its entry and length in bytes of each key. Returns the
    number of keys, which may be more than ``out`` has space for; -1 if some keys are not ASCII: the
    caller must compute their hashes.
    """
    cdef int64_t size = data.shape[0], room = out.shape[1], at, stop, begin, end, message, value
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef const uint8_t *mark
    cdef Py_ssize_t number = 0, other = 0
    cdef int64_t count = 0
    cdef uint32_t hashed
    cdef uint8_t bits = 0
    cdef bint whole
    if unique.shape[0] != 3 or keys.shape[0] != 3 or out.shape[0] != 3:
        raise ValueError("columns have another shape")
    with nogil:
        while number < uniques or other < keyed:
            # The one of the message that comes first; of one message its unique key.
            whole = other >= keyed or (
                number < uniques and unique[0, number] <= keys[0, other])
            if whole:
                message, at, stop = unique[0, number], unique[1, number], unique[2, number]
                number += 1
            else:
                message, at, stop = keys[0, other], keys[1, other], keys[2, other]
                other += 1
            within(at, stop, size)  # the range test for all reads below
            stop += at
            while at < stop:
                begin = at
                mark = NULL
                if not whole:
                    mark = <const uint8_t *>memchr(first + at, SPACE, <size_t>(stop - at))
                end = mark - first if mark != NULL else stop
                hashed = <uint32_t>sharp[topic[message]]
                if at < end:
                    hashed = hashed_on(hashed, first + at, end - at, &bits)
                    at = end
                if at > begin:
                    if count < room:
                        value = <int32_t>hashed
                        out[0, count] = message
                        # Java's abs of the least number is negative, and counts as 0.
                        out[1, count] = 0 if value == INT32_MIN else (
                            -value if value < 0 else value)
                        out[2, count] = at - begin
                    count += 1
                at += 1  # behind the space
    return -1 if bits & 0x80 else count
