# Parts of a file, each read to where it belongs: as many system calls, and nothing between them.

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *into, size_t count, int64_t at)


def read_parts(int fd, uint8_t[::1] out, const int64_t[::1] start, const int64_t[::1] end,
               const int64_t[::1] position, int64_t limit):
    """Fill out[start:end] from ``position`` of a file for each part, up to position ``limit`` of
    the file.

    Bytes after ``limit``, or after the end of the file, read as zeros.

    Raises: IndexError if a part is not inside ``out``, OSError with the system's error number,
    ValueError for a negative position.
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


cdef extern from *:
    """
    #include <signal.h>
    #include <sys/mman.h>
    #include <unistd.h>

    /* The mappings that this thread reads, and whether a page of them could not be read. */
    static __thread uintptr_t rmqctl_from[2], rmqctl_to[2];
    static __thread int rmqctl_missed;
    static __thread sigset_t rmqctl_mask;

    /* A page that cannot be read becomes zeros. Only a fault elsewhere ends the process. */
    static void rmqctl_on_bus(int number, siginfo_t *info, void *context) {
        const uintptr_t at = (uintptr_t)info->si_addr, size = (uintptr_t)getpagesize();
        int part;
        for (part = 0; part < 2; part++) {
            if (at >= rmqctl_from[part] && at < rmqctl_to[part] && mmap(
                    (void *)(at / size * size), size, PROT_READ,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
                rmqctl_missed = 1;
                return;
            }
        }
        signal(number, SIG_DFL);  /* it comes again */
    }

    static struct sigaction rmqctl_before;

    static void rmqctl_handle(int on) {
        struct sigaction ours;
        if (!on) {
            sigaction(SIGBUS, &rmqctl_before, NULL);
            return;
        }
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = rmqctl_on_bus;
        ours.sa_flags = SA_SIGINFO;
        sigemptyset(&ours.sa_mask);
        sigaction(SIGBUS, &ours, &rmqctl_before);
    }

    /* A blocked SIGBUS would end the process, whatever its handler. */
    static void rmqctl_begin(const void *first, size_t size, const void *second, size_t more) {
        sigset_t bus;
        rmqctl_from[0] = (uintptr_t)first; rmqctl_to[0] = rmqctl_from[0] + size;
        rmqctl_from[1] = (uintptr_t)second; rmqctl_to[1] = rmqctl_from[1] + more;
        rmqctl_missed = 0;
        sigemptyset(&bus);
        sigaddset(&bus, SIGBUS);
        pthread_sigmask(SIG_UNBLOCK, &bus, &rmqctl_mask);
    }

    static int rmqctl_finish(void) {
        memset(rmqctl_to, 0, sizeof rmqctl_to);
        pthread_sigmask(SIG_SETMASK, &rmqctl_mask, NULL);
        return rmqctl_missed;
    }
    """
    void rmqctl_handle(int on)
    void rmqctl_begin(const void *first, size_t size, const void *second, size_t more)
    int rmqctl_finish()

cdef int guarded_now = 0
"""Number of threads that read from a mapping."""


cdef void guard(const uint8_t *first, size_t size, const uint8_t *second, size_t more):
    """Catch SIGBUS of this thread in up to two mappings: a page that cannot be read, because the
    file became shorter or the disk is faulty, becomes zeros. Until `unguard`.
    """
    global guarded_now
    # The handler is the process's: it is set while any thread is at it.
    if not guarded_now:
        rmqctl_handle(1)
    guarded_now += 1
    rmqctl_begin(first, size, second, more)


cdef bint unguard():
    """Return whether a page could not be read since `guard`."""
    global guarded_now
    cdef bint missed = rmqctl_finish() != 0
    guarded_now -= 1
    if not guarded_now:
        rmqctl_handle(0)
    return missed


cdef struct Wanted:
    int fd
    const uint8_t *file  # its mapping; NULL where it has none
    uint8_t *out
    const int64_t *place
    const int64_t *size
    Py_ssize_t count
    int64_t room
    int64_t base
    int64_t end


def read_records(int fd, const uint8_t[::1] mapped, uint8_t[::1] out, const int64_t[::1] place,
                 const int64_t[::1] size, int64_t base, int64_t end):
    """Read the records of these sizes at these physical offsets from a file ``fd``, or from
    ``mapped`` if that is not empty.

    They are written to ``out`` back to back. The file contains the log from ``base`` up to ``end``.
    Returns whether each record is complete (provably a record of this size at this offset, with a
    body that matches its CRC; an empty body has the CRC 0), and ``out`` is full. If not, ``out``
    has no meaning. Also returns False if something cannot be read. The result applies to the bytes
    in ``out``, whatever happens to the file.
    """
    cdef Wanted wanted
    cdef bint whole, missed
    if size.shape[0] != place.shape[0] or base < 0 or (
            mapped.shape[0] and end - base > mapped.shape[0]):
        raise ValueError("records have another shape")
    if not place.shape[0] or not out.shape[0]:
        return place.shape[0] == out.shape[0] == 0
    wanted = Wanted(fd, NULL, &out[0], &place[0], &size[0], place.shape[0], out.shape[0], base,
                    end)
    if mapped.shape[0]:
        wanted.file = &mapped[0]
    guard(wanted.file, <size_t>mapped.shape[0] if wanted.file != NULL else 0, NULL, 0)
    with nogil:
        whole = records_in(&wanted)
    missed = unguard()
    return whole and not missed


cdef bint records_in(const Wanted *to) noexcept nogil:
    """Return the result of `read_records`."""
    cdef int64_t at = 0, length, place
    cdef Py_ssize_t row
    cdef Record record
    for row in range(to.count):
        place, length = to.place[row], to.size[row]
        if length < MIN_SIZE or length > to.room - at or place < to.base or (
                place > to.end or length > to.end - place):
            return False
        if to.file != NULL:
            memcpy(to.out + at, to.file + (place - to.base), <size_t>length)
        elif pread(to.fd, to.out + at, <size_t>length, place - to.base) != length:
            return False
        if not is_record(to.out, at + length, at, place - at, &record) or (
                record.total_size != length):
            return False
        if read_i32(to.out + at + BODY_CRC_AT) != <int64_t>(CRC_MASK & crc32(
                0, to.out + record.body_start, <uint64_t>record.body_length)):
            return False
        at += length
    return at == to.room


def intact_records(const uint8_t[::1] data, int64_t base, int64_t at):
    """Return (position after the intact records from data[at:] on, their number, their newest
    store time; 0 if there are none).

    ``data`` may be a mapping of a file. An intact record is provably a record of physical offset
    ``base`` + its position, with a body that matches its CRC. The first other bytes, an incomplete
    record or a page that cannot be read end the range.
    """
    cdef int64_t size = data.shape[0], messages = 0, newest = 0, stored
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Record record
    guard(first, <size_t>size, NULL, 0)
    with nogil:
        while is_record(first, size, at, base, &record) and (
                read_i32(first + at + BODY_CRC_AT) == <int64_t>(CRC_MASK & crc32(
                    0, first + record.body_start, <uint64_t>record.body_length))):
            stored = read_i64(first + at + STORE_TIMESTAMP_AT + (
                BORN_HOST_V6_MORE if record.variant & BORN_HOST_V6 else 0))
            if stored > newest:
                newest = stored
            messages += 1
            at += record.total_size
    unguard()
    return at, messages, newest
