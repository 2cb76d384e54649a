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
    #include <setjmp.h>
    #include <signal.h>

    static __thread sigjmp_buf *rmqctl_way_out;

    static void rmqctl_on_bus(int number) {
        if (rmqctl_way_out) siglongjmp(*rmqctl_way_out, 1);
        signal(number, SIG_DFL);  /* a fault elsewhere, which comes again */
    }

    /* What work(of) says; 0 where it met a page of a mapping that cannot be read. A blocked SIGBUS
       would end the process, whatever its handler. */
    static int rmqctl_guarded(int (*work)(void *), void *of) {
        sigjmp_buf here;
        sigset_t bus, before;
        volatile int said = 0;
        sigemptyset(&bus);
        sigaddset(&bus, SIGBUS);
        pthread_sigmask(SIG_UNBLOCK, &bus, &before);
        if (!sigsetjmp(here, 0)) {
            rmqctl_way_out = &here;
            said = work(of);
        }
        rmqctl_way_out = NULL;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return said;
    }

    /* 0 first; 1 when a page of a mapping could not be read, until rmqctl_leave. The function that
       calls this must not return in between. */
    static __thread sigset_t rmqctl_mask;

    static sigjmp_buf *rmqctl_entered(sigjmp_buf *here) {
        sigset_t bus;
        sigemptyset(&bus);
        sigaddset(&bus, SIGBUS);
        pthread_sigmask(SIG_UNBLOCK, &bus, &rmqctl_mask);
        return rmqctl_way_out = here;
    }

    static void rmqctl_leave(void) {
        if (rmqctl_way_out) pthread_sigmask(SIG_SETMASK, &rmqctl_mask, NULL);
        rmqctl_way_out = NULL;
    }

    #define rmqctl_enter(here) sigsetjmp(*rmqctl_entered(here), 0)

    static struct sigaction rmqctl_before;

    static void rmqctl_guard(int on) {
        struct sigaction ours;
        if (!on) {
            sigaction(SIGBUS, &rmqctl_before, NULL);
            return;
        }
        memset(&ours, 0, sizeof ours);
        ours.sa_handler = rmqctl_on_bus;
        ours.sa_flags = SA_NODEFER;  /* it is left by a jump */
        sigemptyset(&ours.sa_mask);
        sigaction(SIGBUS, &ours, &rmqctl_before);
    }
    """
    ctypedef struct sigjmp_buf:
        pass
    int rmqctl_guarded(int (*work)(void *) noexcept nogil, void *of) noexcept nogil
    int rmqctl_enter(sigjmp_buf *here) noexcept nogil
    void rmqctl_leave() noexcept nogil
    void rmqctl_guard(int on)

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

cdef int guarded_now = 0
"""Number of threads that read from a mapping."""


cdef void begin_guard():
    """Catch SIGBUS from now on. The handler is the process's: it is set while any thread reads from
    a mapping.
    """
    global guarded_now
    if not guarded_now:
        rmqctl_guard(1)
    guarded_now += 1


cdef void end_guard():
    """Undo `begin_guard`."""
    global guarded_now
    rmqctl_leave()  # after an error
    guarded_now -= 1
    if not guarded_now:
        rmqctl_guard(0)


cdef int guarded(int (*work)(void *) noexcept nogil, void *of):
    """Return the result of ``work``, which may read from a mapping; 0 if a page cannot be read,
    because the file became shorter or the disk is faulty. SIGBUS is caught meanwhile.
    """
    cdef int result
    begin_guard()
    with nogil:
        result = rmqctl_guarded(work, of)
    end_guard()
    return result


cdef struct Copied:
    const uint8_t *start
    uint8_t *into
    int64_t count


cdef int copy_bytes(void *of) noexcept nogil:
    """Copy the bytes. Return 1."""
    cdef Copied *to = <Copied *>of
    memcpy(to.into, to.start, <size_t>to.count)
    return 1


def copied(const uint8_t[::1] data, int64_t at, uint8_t[::1] into):
    """Fill ``into`` with the bytes from ``at`` on of a mapping ``data``. Return whether they can be
    read.
    """
    cdef Copied some
    within(at, into.shape[0], data.shape[0])
    if not into.shape[0]:
        return True
    some = Copied(&data[at], &into[0], into.shape[0])
    return guarded(copy_bytes, &some) == 1


def read_records(int fd, const uint8_t[::1] mapped, uint8_t[::1] out, const int64_t[::1] place,
                 const int64_t[::1] size, int64_t base, int64_t end):
    """Read the records of these sizes at these physical offsets from a file ``fd``, or from
    ``mapped`` if that is not empty.

    They are written to ``out`` back to back. The file contains the log from ``base`` up to ``end``.
    Returns whether each record is complete (provably a record of this size at this offset, with a
    body that matches its CRC; an empty body has the CRC 0), and ``out`` is full. If not, ``out``
    has no meaning. Also returns False if something cannot be read. The result applies to the bytes in ``out``,
    whatever happens to the file.
    """
    cdef Wanted wanted
    if size.shape[0] != place.shape[0] or base < 0 or (
            mapped.shape[0] and end - base > mapped.shape[0]):
        raise ValueError("records have another shape")
    if not place.shape[0] or not out.shape[0]:
        return place.shape[0] == out.shape[0] == 0
    wanted = Wanted(fd, NULL, &out[0], &place[0], &size[0], place.shape[0], out.shape[0], base,
                    end)
    if mapped.shape[0]:
        wanted.file = &mapped[0]
    return guarded(records_in, &wanted) == 1


cdef int records_in(void *of) noexcept nogil:
    """Return the result of `read_records` as 1 or 0."""
    cdef Wanted *to = <Wanted *>of
    cdef int64_t at = 0, length, place
    cdef Py_ssize_t row
    cdef Record record
    for row in range(to.count):
        place, length = to.place[row], to.size[row]
        if length < MIN_SIZE or length > to.room - at or place < to.base or (
                place > to.end or length > to.end - place):
            return 0
        if to.file != NULL:
            memcpy(to.out + at, to.file + (place - to.base), <size_t>length)
        elif pread(to.fd, to.out + at, <size_t>length, place - to.base) != length:
            return 0
        if not is_record(to.out, at + length, at, place - at, &record) or (
                record.total_size != length):
            return 0
        if read_i32(to.out + at + BODY_CRC_AT) != <int64_t>(CRC_MASK & crc32(
                0, to.out + record.body_start, <uint64_t>record.body_length)):
            return 0
        at += length
    return at == to.room


cdef enum:
    MIN_PAGE = 4096

cdef struct Run:
    const uint8_t *data
    int64_t size
    int64_t base
    int64_t at
    int64_t count
    int64_t newest


def intact_records(const uint8_t[::1] data, int64_t base, int64_t at):
    """Return (position after the intact records from data[at:] on, their number, their newest
    store time; 0 if there are none).

    ``data`` may be a mapping of a file. An intact record is provably a record of physical offset
    ``base`` + its position, with a body that matches its CRC. The first other bytes, or an
    incomplete record, end the range. If a page cannot be read, no record counts as intact.
    """
    cdef Run run = Run(NULL, data.shape[0], base, at, 0, 0)
    if not data.shape[0]:
        return at, 0, 0
    run.data = &data[0]
    if not guarded(pass_intact, &run):
        return at, 0, 0
    return run.at, run.count, run.newest


cdef int pass_intact(void *of) noexcept nogil:
    """Move ``at`` past the intact records. Return 1."""
    cdef Run *to = <Run *>of
    cdef int64_t stored, place
    cdef volatile uint8_t byte
    cdef Record record
    while is_record(to.data, to.size, to.at, to.base, &record) and (
            read_i32(to.data + to.at + BODY_CRC_AT) == <int64_t>(CRC_MASK & crc32(
                0, to.data + record.body_start, <uint64_t>record.body_length))):
        stored = read_i64(to.data + to.at + STORE_TIMESTAMP_AT + (
            BORN_HOST_V6_MORE if record.variant & BORN_HOST_V6 else 0))
        if stored > to.newest:
            to.newest = stored
        # Topic and properties need not be looked at, but their pages must be readable.
        place = record.body_start + record.body_length
        while place < to.at + record.total_size:
            byte = to.data[place]
            place += MIN_PAGE
        to.count += 1
        to.at += record.total_size
        byte = to.data[to.at - 1]
    return 1
