# Parts of a file, each read to where it belongs: as many system calls, and nothing between them.

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *into, size_t count, int64_t at)


def read_parts(int fd, uint8_t[::1] out, const int64_t[::1] start, const int64_t[::1] end,
               const int64_t[::1] position, int64_t limit):
    """Fills out[start:end] from a file's ``position`` for each, up to its position ``limit``.

    What lies behind that, or behind the end of the file, reads as zeros. IndexError where a part
    does not lie in out; OSError with the system's number; ValueError for a negative position.
    """
    cdef int64_t size = out.shape[0], at, count, wanted, got
    cdef uint8_t *first = &out[0] if size else NULL
    cdef Py_ssize_t number
    with nogil:
        for number in range(start.shape[0]):
            at, count = start[number], end[number] - start[number]
            within(at, count, size)
            if position[number] < 0:
                raise ValueError("a position before the file")
            wanted, got = min(count, limit - position[number]), 0
            if wanted > 0:
                got = pread(fd, first + at, <size_t>wanted, position[number])
                if got < 0:
                    with gil:
                        PyErr_SetFromErrno(OSError)
            if got < count:
                memset(first + at + got, 0, <size_t>(count - got))


def read_records(int fd, uint8_t[::1] out, const int64_t[::1] place, const int64_t[::1] size,
                 int64_t base, int64_t end):
    """Reads the records of a file that lie at these physical offsets, with these sizes.

    They go to ``out`` one behind the other. The file holds the log from ``base`` up to ``end``.
    Gives whether each is whole: provably a record of just that size at its place, whose body
    matches its CRC (an empty body has the CRC 0), and out is full; it has no meaning otherwise.
    OSError with the system's number.
    """
    cdef int whole
    if size.shape[0] != place.shape[0] or base < 0:
        raise ValueError("records have another shape")
    with nogil:
        whole = records_in(fd, out, place, size, base, end)
    return whole == 1


cdef int records_in(int fd, uint8_t[::1] out, const int64_t[::1] place, const int64_t[::1] size,
                    int64_t base, int64_t end) except -1 nogil:
    """The same: 1 or 0."""
    cdef int64_t room = out.shape[0], at = 0, first, got
    cdef Py_ssize_t row = 0, run, count = place.shape[0]
    cdef Record record
    while row < count:
        # Those that lie behind each other are read at once.
        run, first = row, at
        while True:
            if size[row] < MIN_SIZE or size[row] > room - at or place[row] < base or (
                    place[row] > end or size[row] > end - place[row]):
                return 0
            at += size[row]
            row += 1
            if row == count or place[row] != place[row - 1] + size[row - 1]:
                break
        got = pread(fd, &out[first], <size_t>(at - first), place[run] - base)
        if got < 0:
            with gil:
                PyErr_SetFromErrno(OSError)
        if got != at - first:
            return 0
        at = first
        while run < row:
            if not is_record(&out[0], at + size[run], at, place[run] - at, &record) or (
                    record.total_size != size[run]):
                return 0
            if read_i32(&out[at + BODY_CRC_AT]) != <int64_t>(CRC_MASK & crc32(
                    0, &out[0] + record.body_start, <uint64_t>record.body_length)):
                return 0
            at += size[run]
            run += 1
    return at == room
