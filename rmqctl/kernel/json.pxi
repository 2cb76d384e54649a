# Texts and numbers become JSON objects: what `read -o jsonl` writes.

cdef enum:
    STRING, LIST, OBJECT  # what `json_texts` makes of a text
    NUMBER = -1, FOR_OTHERS = -2  # in place of a length
    MOST_NAMES = 64
    QUOTE = 34, COMMA = 44, COLON = 58, BACKSLASH = 92

MAKES = {"string": STRING, "list": LIST, "object": OBJECT}

cdef const uint8_t *SHORT = b"btn_fr"
cdef const uint8_t *DIGITS = b"0123456789abcdef"
cdef uint64_t ONES = 0x0101010101010101u


cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define first_byte(bits) (__builtin_clzll(bits) >> 3)
    #else
    #define first_byte(bits) (__builtin_ctzll(bits) >> 3)
    #endif
    """
    int first_byte(uint64_t bits) nogil  # the first byte in memory with a bit


cdef inline uint64_t zeros(uint64_t word) noexcept nogil:
    """Return a word in which the highest bit of each zero byte is set. The bit of a byte beside a
    zero byte may be set, too.
    """
    return (word - ONES) & ~word & (ONES << 7)


cdef inline int64_t utf8_width(const uint8_t *text, int64_t count) noexcept nogil:
    """Return the number of bytes of the character at the start of ``count`` > 0 bytes, whose first
    byte is not ASCII; 0 if it is not a valid character.
    """
    cdef uint8_t head = text[0]
    cdef int64_t at, width = 2 if head < 0xE0 else 3 if head < 0xF0 else 4
    if head < 0xC2 or head > 0xF4 or count < width:
        return 0
    if (text[1] < (0xA0 if head == 0xE0 else 0x90 if head == 0xF0 else 0x80)
            or text[1] > (0x9F if head == 0xED else 0x8F if head == 0xF4 else 0xBF)):
        return 0
    for at in range(2, width):
        if text[at] & 0xC0 != 0x80:
            return 0
    return width


cdef int64_t quoted(const uint8_t *text, int64_t count, uint8_t *out) noexcept nogil:
    """Write ``count`` bytes of text as a JSON string, with at most 6 bytes for each byte, and 2
    quotes.

    The caller has checked that the text and the space exist. Returns the number of written bytes;
    -1 if the text is not UTF-8.
    """
    cdef uint8_t *to = out + 1
    cdef int64_t at = 0, plain, width
    cdef uint64_t word, special
    cdef uint8_t char
    out[0] = QUOTE
    while at < count:
        # Eight bytes at once, as far as none of them needs a closer look.
        if count - at >= 8:
            memcpy(&word, text + at, 8)
            memcpy(to, &word, 8)
            special = (word | (word - ONES * 0x20) & ~word | zeros(word ^ (ONES * QUOTE))
                       | zeros(word ^ (ONES * BACKSLASH))) & (ONES << 7)
            if not special:
                to += 8
                at += 8
                continue
            plain = first_byte(special)
            to += plain
            at += plain
        char = text[at]
        if char >= 0x80:
            while at < count and text[at] >= 0x80:
                width = utf8_width(text + at, count - at)
                if not width:
                    return -1
                for plain in range(width):
                    to[plain] = text[at + plain]
                to += width
                at += width
            continue
        if char == QUOTE or char == BACKSLASH:
            to[0], to[1] = BACKSLASH, char
            to += 2
        elif char >= 0x20:
            to[0] = char
            to += 1
        elif 8 <= char <= 13 and char != 11:
            to[0], to[1] = BACKSLASH, SHORT[char - 8]
            to += 2
        else:
            memcpy(to, b"\\u00", 4)
            to[4], to[5] = DIGITS[char >> 4], DIGITS[char & 15]
            to += 6
        at += 1
    to[0] = QUOTE
    return to + 1 - out


cdef int64_t several(const uint8_t *text, int64_t count, bint pairs, uint8_t separator,
                     uint8_t assign, uint8_t *out) noexcept nogil:
    """Write the parts of a text as a JSON list, or with ``pairs`` as an object.

    Empty parts, and pairs without a name or a value, are omitted. At most 6 bytes for each byte,
    and 2 more, are written. The caller has checked that the text and the space exist. Returns the
    number of written bytes; -1 if the text is not UTF-8, or contains a name twice or too many
    names.
    """
    cdef const uint8_t *name_at[MOST_NAMES]
    cdef int64_t name_size[MOST_NAMES]
    cdef const uint8_t *end = text + count
    cdef const uint8_t *stop
    cdef const uint8_t *value
    cdef uint8_t *to = out + 1
    cdef int64_t size, names = 0, other
    out[0] = 123 if pairs else 91  # { or [
    while text < end:
        stop = <const uint8_t *>memchr(text, separator, <size_t>(end - text))
        if stop == NULL:
            stop = end
        value = text
        if pairs:
            value = <const uint8_t *>memchr(text, assign, <size_t>(stop - text))
            if value == NULL or value == text or value + 1 == stop:
                text = stop + 1
                continue
        elif text == stop:
            text = stop + 1
            continue
        if to > out + 1:
            to[0], to[1] = COMMA, SPACE
            to += 2
        if pairs:
            size = value - text
            if names == MOST_NAMES:
                return -1
            for other in range(names):
                if name_size[other] == size and not memcmp(name_at[other], text, <size_t>size):
                    return -1
            name_at[names], name_size[names] = text, size
            names += 1
            size = quoted(text, size, to)
            if size < 0:
                return -1
            to[size], to[size + 1] = COLON, SPACE
            to += size + 2
            value += 1
        size = quoted(value, stop - value, to)
        if size < 0:
            return -1
        to += size
        text = stop + 1
    to[0] = 125 if pairs else 93
    return to + 1 - out


def json_texts(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
               int shape, uint8_t separator, uint8_t assign, uint8_t[::1] out, int64_t at,
               int64_t[:, ::1] places):
    """Write the texts data[start:start + length] as JSON of a shape (of `MAKES`) to out[at:].

    A list has the parts between separators; an object has names and values, with ``assign`` between
    them (`several`). ``places`` (int64 [2, n]) receives start and length of each JSON text in
    ``out``; the length is -2 if the caller must convert the text. Returns the end of the last text.

    Raises: IndexError if a text is not inside data, or if ``out`` has less space than 6 bytes for
    each byte, and 2 more.
    """
    cdef int64_t size = data.shape[0], room = out.shape[0], count, written
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Py_ssize_t number
    with nogil:
        for number in range(start.shape[0]):
            count = length[number]
            within(start[number], count, size)
            within(at, 6 * count + 2, room)  # count is no more than the data, so it is small
            if shape == STRING:
                written = quoted(first + start[number], count, &out[at])
            else:
                written = several(first + start[number], count, shape == OBJECT, separator, assign,
                                  &out[at])
            places[0, number] = at
            places[1, number] = written if written >= 0 else FOR_OTHERS
            at += max(written, 0)
    return at


def weave(const uint8_t[::1] texts, const int64_t[:, :, ::1] cells, const uint8_t[::1] between,
          const int64_t[::1] ends, uint8_t[::1] out):
    """Write, row by row, the texts between cells and the cells.

    ``cells`` (int64 [columns, 2, rows]) has start and length of each cell in ``texts``, or with the
    length -1 a number, which is written in digits. The text before cell n of a row ends at
    ``ends[n]`` of ``between``, and begins at the end of the previous one; one more text follows the
    last cell. Returns the number of written bytes.

    Raises: IndexError if a text is not inside the data, or if ``out`` has no space for it (20 bytes
    for each number).
    """
    cdef int64_t size = texts.shape[0], room = out.shape[0], at = 0, begin, count
    cdef const uint8_t *first = &texts[0] if size else NULL
    cdef Py_ssize_t row, column, columns = cells.shape[0]
    cdef uint64_t number
    cdef uint8_t digits[20]
    if cells.shape[1] != 2 or ends.shape[0] != columns + 1:
        raise ValueError("cells have another shape")
    with nogil:
        for row in range(cells.shape[2]):
            begin = 0
            for column in range(columns + 1):
                count = ends[column] - begin
                within(begin, count, between.shape[0])
                within(at, count, room)
                if count:
                    memcpy(&out[at], &between[begin], <size_t>count)
                at += count
                begin = ends[column]
                if column == columns:
                    break
                count = cells[column, 1, row]
                if count == NUMBER:
                    within(at, 20, room)
                    number = <uint64_t>cells[column, 0, row]
                    if cells[column, 0, row] < 0:
                        out[at] = 45  # a minus
                        at += 1
                        number = 0 - number
                    count = 0
                    while number or not count:  # at most 19 digits, from the last one on
                        count += 1
                        digits[20 - count] = <uint8_t>(48 + number % 10)
                        number //= 10
                    memcpy(&out[at], &digits[20 - count], <size_t>count)
                else:
                    within(cells[column, 0, row], count, size)
                    within(at, count, room)
                    if count:
                        memcpy(&out[at], first + cells[column, 0, row], <size_t>count)
                at += count
    return at
