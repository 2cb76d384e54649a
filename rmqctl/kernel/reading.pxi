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
