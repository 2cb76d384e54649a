# Requests that are the same again but for some numbers: what consumers send over and over
# (spec: remoting.md §1, §3.1).
#
# What such a header says was found out when it came first; from then on its numbers are enough.
# As in sends.pxi anything but strict JSON with plain texts ends the run.

cdef enum:
    MOST_REPEATED = 1024  # bytes of a header
    MOST_NAMES_REPEATED = 8


cdef const uint8_t *without_numbers(const uint8_t *at, const uint8_t *end, const uint8_t *names,
                                    int64_t names_size, uint8_t *out, int64_t *numbers,
                                    uint32_t *seen) noexcept nogil:
    """Copy a header to ``out`` without the digits of the named numbers.

    Each of the ``names`` ends with a zero byte; the first is a name in the header itself, with a
    number of 32 bits, the others are names of its fields. Returns the end of the copy; NULL if a
    name occurs twice or with another value than a number, or if the header is not in plain form.
    """
    cdef const uint8_t *stop
    cdef const uint8_t *name
    cdef const uint8_t *name_end
    cdef const uint8_t *last = names + names_size
    cdef int depth = 0, number
    cdef bint quoted
    seen[0] = 0
    if at == end:
        return NULL
    while at < end:
        if at[0] != QUOTE:
            depth += (at[0] == 123) - (at[0] == 125)
            out[0] = at[0]
            out += 1
            at += 1
            continue
        stop = text_end(at + 1, end)
        if stop == NULL:
            return NULL
        stop += 1
        memcpy(out, at, <size_t>(stop - at))
        out += stop - at
        if stop == end or stop[0] != COLON or not 1 <= depth <= 2:
            at = stop
            continue
        number, name, at = 0, names, at + 1
        while name < last:
            name_end = <const uint8_t *>memchr(name, 0, <size_t>(last - name))
            if (depth == 1) == (number == 0) and name_end - name == stop - 1 - at and (
                    memcmp(name, at, <size_t>(name_end - name)) == 0):
                break
            name = name_end + 1
            number += 1
        at = stop
        if name >= last:
            continue
        if seen[0] >> number & 1:
            return NULL
        seen[0] |= <uint32_t>1 << number
        quoted = end - at > 1 and at[1] == QUOTE
        memcpy(out, b':"', 2)
        out += 1 + quoted
        at = number_end(at + 1 + quoted, end, number != 0, &numbers[number])
        if at == NULL or at == end or (
                at[0] != QUOTE if quoted else at[0] != COMMA and at[0] != 125):
            return NULL
        if quoted:
            out[0] = QUOTE
            out += 1
            at += 1
    return out if depth == 0 and (end - 1)[0] == 125 else NULL


def repeats(data, Py_ssize_t at, int64_t limit, int head_size, int counted,
            const uint8_t[::1] names, Py_ssize_t most):
    """Return the headers of at most ``most`` complete frames without a body, from data[at] on.

    Each item is (end of the frame, header without the digits of its numbers, numbers): the numbers
    are in the order of their ``names``, each of which ends with a zero byte; a missing number is
    None. The first name is a name in the header itself, the others are names of its fields. For
    ``limit``, ``head_size`` and ``counted`` see `sends`.
    """
    cdef Py_buffer view
    cdef Py_ssize_t place
    cdef int count = 0
    for place in range(names.shape[0]):
        count += names[place] == 0
    if counted != 4 or head_size != 8 or at < 0 or not 0 < count <= MOST_NAMES_REPEATED or (
            names[names.shape[0] - 1]):
        raise ValueError("a frame of another shape")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)  # so that it stays where it is
    try:
        return repeats_in(<const uint8_t *>view.buf, view.len, at, limit, head_size, counted,
                          &names[0], names.shape[0], count, most)
    finally:
        PyBuffer_Release(&view)


cdef list repeats_in(const uint8_t *base, Py_ssize_t size, Py_ssize_t at, int64_t limit,
                     int head_size, int counted, const uint8_t *names, int64_t names_size,
                     int count, Py_ssize_t most):
    """Return the same for ``size`` bytes at a pointer."""
    # The quotes of a number that is cut off are copied before what follows is looked at.
    cdef uint8_t scratch[MOST_REPEATED + 4]
    cdef int64_t numbers[MOST_NAMES_REPEATED]
    cdef uint32_t seen = 0
    cdef const uint8_t *header
    cdef const uint8_t *end
    cdef int64_t length, word
    cdef int number
    cdef list found = []
    while len(found) < most and size - at >= head_size:
        length, word = read_i32(base + at), read_u32(base + at + counted)
        if word != length - counted or word > MOST_REPEATED or length > limit or (
                length > size - at - counted):
            break
        header = base + at + head_size
        end = without_numbers(header, header + word, names, names_size, scratch, numbers, &seen)
        if end == NULL:
            break
        at += counted + length
        found.append((at, PyBytes_FromStringAndSize(<const char *>scratch, end - scratch),
                      *[numbers[number] if seen >> number & 1 else None
                        for number in range(count)]))
    return found
