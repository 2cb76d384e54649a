# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=True, show_performance_hints=False
"""Loops over the bytes of records, without the GIL and without Python objects.

Memory: arrays are accessed through typed memoryviews, which check every index. The bytes of a
record are accessed through a pointer; each function that has one documents the range check that
precedes the access. Lengths read from a record have at most 32 bits and are added as 64 bits, so no
sum of them overflows.
"""

from libc.stdint cimport (INT32_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t,
                          uint64_t)

from libc.string cimport memcpy, memset

from cpython.exc cimport PyErr_SetFromErrno

include "layout.pxi"

cdef extern from *:
    """
    #ifndef RMQCTL_SOURCE
    #define RMQCTL_SOURCE 0
    #endif
    """
    const uint32_t RMQCTL_SOURCE

SOURCE = RMQCTL_SOURCE

# -- numbers, big-endian --------------------------------------------------------------------------
# The caller has tested that the bytes are there. A compiler makes one load of each.


cdef inline int16_t read_i16(const uint8_t *at) noexcept nogil:
    return <int16_t>((<uint32_t>at[0] << 8) | at[1])


cdef inline uint32_t read_u32(const uint8_t *at) noexcept nogil:
    return ((<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16)
            | (<uint32_t>at[2] << 8) | <uint32_t>at[3])


cdef inline int32_t read_i32(const uint8_t *at) noexcept nogil:
    return <int32_t>read_u32(at)


cdef inline int64_t read_i64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>read_u32(at) << 32) | read_u32(at + 4))


cdef inline int64_t number_at(const uint8_t *at, int width, bint signed) noexcept nogil:
    """Return the big-endian integer of 1, 2, 4 or 8 bytes at a pointer."""
    if width == 8:
        return read_i64(at)
    if width == 4:
        return read_i32(at) if signed else <int64_t>read_u32(at)
    if width == 2:
        return read_i16(at) if signed else <int64_t>(read_i16(at) & 0xFFFF)
    return <int8_t>at[0] if signed else <int64_t>at[0]


cdef inline int within(int64_t at, int64_t count, int64_t size) except -1 nogil:
    """Raise IndexError unless data[at:at + count] is inside ``size`` bytes of data. No sum
    overflows.
    """
    if at < 0 or at > size or count < 0 or count > size - at:
        raise IndexError("outside of the data")
    return 0


# -- records --------------------------------------------------------------------------------------

cdef enum:  # rows of the columns that `follow` and `examine` fill
    START, TOTAL, BODY_START, BODY_LENGTH, TOPIC_START, TOPIC_LENGTH
    PROPERTIES_START, PROPERTIES_LENGTH, VARIANT, ROWS

COLUMNS = ("start", "total_size", "body_start", "body_length", "topic_start", "topic_length",
           "properties_start", "properties_length")


cdef struct Record:
    int64_t total_size, body_start, body_length, topic_start, topic_length
    int64_t properties_start, properties_length, variant


cdef bint is_record(const uint8_t *data, int64_t size, int64_t at, int64_t base,
                    Record *found) noexcept nogil:
    """Return whether the bytes at data[at:] are provably a record of physical offset base + at.

    Such a record has the magic of a message, this physical offset, and lengths that add up to its
    size, all inside the ``size`` bytes of data (spec: commitlog.md). If not, only the size in
    ``found`` has a meaning. Only data[at:at + total_size] is read, with a range check before each
    read.
    """
    cdef int64_t total, end, head_size, fixed_size, topic_width, physical
    cdef uint32_t magic
    cdef int32_t flag
    cdef const uint8_t *record

    # The head of any record, as far as the system flag.
    found.total_size = 0
    if at < 0 or at > size or size - at < START_SIZE:
        return False
    record = data + at
    total = read_i32(record + TOTAL_SIZE_AT)
    found.total_size = total
    if total < MIN_SIZE or total > size - at:
        return False
    magic = read_u32(record + MAGIC_AT)
    if magic == MAGIC_V1:
        topic_width = TOPIC_LENGTH_SIZE_V1
        found.variant = 0
    elif magic == MAGIC_V2:
        topic_width = TOPIC_LENGTH_SIZE_V2
        found.variant = 1
    else:
        return False
    physical = <int64_t>(<uint64_t>base + <uint64_t>at)
    if read_i64(record + PHYSICAL_OFFSET_AT) != physical:
        return False

    # The system flag decides how wide the hosts are, and so where the body begins.
    flag = read_i32(record + SYS_FLAG_AT)
    found.variant |= flag & (BORN_HOST_V6 | STORE_HOST_V6)
    head_size = HEAD_SIZE
    if flag & BORN_HOST_V6:
        head_size += BORN_HOST_V6_MORE
    if flag & STORE_HOST_V6:
        head_size += STORE_HOST_V6_MORE
    fixed_size = head_size + topic_width + PROPERTIES_LENGTH_SIZE
    if total < fixed_size:
        return False

    # Body, topic and properties: each length leaves room for what comes behind it.
    end = at + total
    found.body_length = read_i32(record + head_size - (HEAD_SIZE - BODY_LENGTH_AT))
    if found.body_length < 0 or found.body_length > total - fixed_size:
        return False
    found.body_start = at + head_size
    found.topic_start = found.body_start + found.body_length + topic_width
    if topic_width == 1:
        found.topic_length = <int8_t>data[found.topic_start - 1]
    else:
        found.topic_length = read_i16(data + found.topic_start - 2)
    found.properties_start = found.topic_start + found.topic_length + PROPERTIES_LENGTH_SIZE
    if found.topic_length < 0 or found.properties_start > end:
        return False
    found.properties_length = read_i16(data + found.properties_start - PROPERTIES_LENGTH_SIZE)
    return found.properties_length >= 0 and (
        found.properties_start + found.properties_length == end)


cdef inline int put(int64_t[:, ::1] columns, Py_ssize_t row, int64_t start,
                    const Record *record) except -1 nogil:
    columns[START, row] = start
    columns[TOTAL, row] = record.total_size
    columns[BODY_START, row] = record.body_start
    columns[BODY_LENGTH, row] = record.body_length
    columns[TOPIC_START, row] = record.topic_start
    columns[TOPIC_LENGTH, row] = record.topic_length
    columns[PROPERTIES_START, row] = record.properties_start
    columns[PROPERTIES_LENGTH, row] = record.properties_length
    columns[VARIANT, row] = record.variant
    return 0


def follow(const uint8_t[::1] data, int64_t base, int64_t at, int64_t end, int64_t most,
           int64_t[:, ::1] columns, int64_t head=0):
    """Follow records by their sizes from data[at:] on, up to the first bytes that are not a record.

    ``base`` is the physical offset of data[0]. Before each record are ``head`` bytes of an entry
    header. At most ``most`` records are followed; each starts before ``end`` and is completely in
    data. ``columns`` (int64 [9, n], rows as in `COLUMNS`, then the variant) receives one column for
    each record; the function stops when it is full. Returns the number of records.
    """
    cdef int64_t size = data.shape[0]
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Py_ssize_t count = 0, room = columns.shape[1]
    cdef Record record
    if columns.shape[0] != ROWS:
        raise ValueError("columns have another shape")
    if not 0 <= at <= size or not 0 <= head <= size:  # so that they can be added
        return 0
    with nogil:
        while count < most and count < room and at < end and is_record(
                first, size, at + head, base, &record):
            put(columns, count, at + head, &record)
            at += head + record.total_size
            count += 1
    return count


def examine(const uint8_t[::1] data, const int64_t[::1] base, const int64_t[::1] start,
            int64_t[:, ::1] columns, uint8_t[::1] ok):
    """Determine which of the candidates at data[start:] are records; ``columns`` is filled as by
    `follow`.

    ``base`` is the physical offset of data[0]: one for all candidates, or one for each. ``ok``
    receives 0 or 1. A candidate that is not a record has zeros in its columns, except for its
    start, its size, and the variant -1.
    """
    cdef int64_t size = data.shape[0], its_base
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Py_ssize_t row, count = start.shape[0]
    cdef bint each = base.shape[0] != 1, good
    cdef Record record
    if columns.shape[0] != ROWS:
        raise ValueError("columns have another shape")
    with nogil:
        for row in range(count):
            its_base = base[row if each else 0]
            good = is_record(first, size, start[row], its_base, &record)
            if not good:
                record.body_start = record.body_length = 0
                record.topic_start = record.topic_length = 0
                record.properties_start = record.properties_length = 0
                record.variant = -1
            put(columns, row, start[row], &record)
            ok[row] = good


def integers(const uint8_t[::1] data, const int64_t[::1] start, int64_t offset, int width,
             bint signed, int64_t[::1] out):
    """Write the big-endian integers of 1, 2, 4 or 8 bytes at data[start + offset:] to ``out``.

    Raises: IndexError if an integer is not inside data.
    """
    cdef int64_t size = data.shape[0]
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Py_ssize_t row
    if width not in (1, 2, 4, 8):
        raise ValueError("no such integer")
    within(offset, 0, size)  # so that it can be added
    with nogil:
        for row in range(start.shape[0]):
            within(start[row], offset + width, size)
            out[row] = number_at(first + start[row] + offset, width, signed)


# -- texts ----------------------------------------------------------------------------------------


def fill(uint8_t[:, ::1] texts, const uint8_t[::1] data, const int64_t[::1] start,
         const int64_t[::1] length):
    """Copy data[start:start + length] to the rows of texts, with zeros after shorter texts.

    Returns whether all texts fill their rows.

    Raises: IndexError if a text is not inside data, or too long.
    """
    cdef int64_t size = data.shape[0], at, count, width = texts.shape[1]
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef uint8_t *row
    cdef Py_ssize_t number
    cdef bint full = True
    if not texts.shape[0] or not width:
        return True
    with nogil:
        for number in range(texts.shape[0]):
            at, count = start[number], length[number]
            # The range test for both ends of the copy.
            if at < 0 or at > size or count < 0 or count > size - at or count > width:
                raise IndexError("outside of the data")
            row = &texts[number, 0]
            if count:
                memcpy(row, first + at, <size_t>count)
            if count < width:
                memset(row + count, 0, <size_t>(width - count))
                full = False
    return full


cdef inline uint32_t hashed_on(uint32_t value, const uint8_t *text, int64_t count,
                               uint8_t *bits) noexcept nogil:
    """Return the ``String.hashCode`` of an ASCII text with hash ``value`` followed by ``count``
    bytes.

    The caller has checked that the bytes exist. ``bits`` receives the bits that are set in any of
    these bytes.
    """
    cdef uint8_t seen = bits[0]
    while count >= 4:  # four steps at once: 31^4, 31^3, 31^2, 31
        value = (value * 923521u + text[0] * 29791u + text[1] * 961u + text[2] * 31u
                 + text[3])
        seen |= text[0] | text[1] | text[2] | text[3]
        text += 4
        count -= 4
    while count:
        value = value * 31u + text[0]
        seen |= text[0]
        text += 1
        count -= 1
    bits[0] = seen
    return value


def hashes(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
           int64_t[::1] out, uint8_t[::1] odd):
    """Write the ``String.hashCode`` of ASCII texts data[start:start + length] to ``out``.

    ``odd`` receives 1 for a text that is not ASCII, whose hash has no meaning, else 0. Returns
    whether there are such texts.

    Raises: IndexError if a text is not inside data.
    """
    cdef int64_t size = data.shape[0], at, count
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Py_ssize_t number
    cdef uint8_t bits
    cdef bint some = False
    with nogil:
        for number in range(start.shape[0]):
            at, count = start[number], length[number]
            within(at, count, size)
            bits = 0
            out[number] = <int32_t>hashed_on(0, first + at, count, &bits) if count else 0
            odd[number] = bits >> 7
            some |= bits >> 7
    return some


# -- CRC-32 ---------------------------------------------------------------------------------------

cdef extern from *:
    """
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    static int rmqctl_avx;
    static void rmqctl_ask_avx(void) { rmqctl_avx = __builtin_cpu_supports("avx"); }
    /* A call, at which no vector register is in use by the caller. */
    static __attribute__((noinline)) void rmqctl_zero_upper(void) {
        __asm__ volatile("vzeroupper");
    }
    #define rmqctl_clean() do { if (rmqctl_avx) rmqctl_zero_upper(); } while (0)
    #else
    #define rmqctl_ask_avx() ((void)0)
    #define rmqctl_clean() ((void)0)
    #endif
    """
    # ISA-L's CRC-32 leaves values in the upper halves of vector registers, which makes the next
    # instruction that uses a lower half wait for about 150 cycles. A call clears them.
    void rmqctl_ask_avx() noexcept nogil
    void rmqctl_clean() noexcept nogil

rmqctl_ask_avx()

ctypedef uint32_t (*crc_function)(uint32_t, const uint8_t *, uint64_t) noexcept nogil

cdef uint32_t table[8][256]


cdef void make_table() noexcept nogil:
    cdef uint32_t value, number, step
    for number in range(256):
        value = number
        for step in range(8):
            value = (value >> 1) ^ (0xEDB88320u if value & 1 else 0)
        table[0][number] = value
    for number in range(256):
        for step in range(1, 8):
            value = table[step - 1][number]
            table[step][number] = (value >> 8) ^ table[0][value & 0xFF]


cdef uint32_t crc_by_table(uint32_t crc, const uint8_t *at, uint64_t length) noexcept nogil:
    """Return the CRC-32 of ``length`` bytes, eight at a time. Every index of the table is one
    byte.
    """
    cdef uint32_t low, high
    crc = ~crc
    while length >= 8:
        low = crc ^ (<uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16
                     | <uint32_t>at[3] << 24)
        high = (<uint32_t>at[4] | <uint32_t>at[5] << 8 | <uint32_t>at[6] << 16
                | <uint32_t>at[7] << 24)
        crc = (table[7][low & 0xFF] ^ table[6][(low >> 8) & 0xFF]
               ^ table[5][(low >> 16) & 0xFF] ^ table[4][low >> 24]
               ^ table[3][high & 0xFF] ^ table[2][(high >> 8) & 0xFF]
               ^ table[1][(high >> 16) & 0xFF] ^ table[0][high >> 24])
        at += 8
        length -= 8
    while length:
        crc = (crc >> 8) ^ table[0][(crc ^ at[0]) & 0xFF]
        at += 1
        length -= 1
    return ~crc


cdef uint8_t with_top[256]  # by their highest byte, the entries of table[0]


cdef void make_with_top() noexcept nogil:
    cdef uint32_t number
    for number in range(256):
        with_top[table[0][number] >> 24] = <uint8_t>number


def byte_changes(uint32_t syndrome, int64_t length):
    """Return (number of bytes after it, changed bits) of each byte among the last ``length`` bytes
    whose change causes this difference of CRCs: the steps of the CRC are reverted until only one
    byte is left.
    """
    cdef int64_t behind
    cdef uint32_t value = syndrome, number
    found = []
    for behind in range(length):
        number = with_top[value >> 24]
        value = (value ^ table[0][number]) << 8 | number
        if 0 < value < 256:
            found.append((behind, value))
    return found


make_table()
make_with_top()
cdef crc_function crc_used = crc_by_table


cdef inline uint32_t crc32(uint32_t crc, const uint8_t *at, uint64_t length) noexcept nogil:
    crc = crc_used(crc, at, length)
    rmqctl_clean()
    return crc


def use_crc(size_t address):
    """Use the function at an address for all CRCs; for 0, or if it is wrong, the kernel's own
    function.

    Its type must be ISA-L's: uint32_t (uint32_t crc, const unsigned char *data, uint64_t length).
    Returns whether the function at the address is used.
    """
    global crc_used
    cdef const uint8_t *probe = b"123456789"
    crc_used = <crc_function>address if address else crc_by_table
    if crc32(0, probe, 9) != 0xCBF43926u:
        crc_used = crc_by_table
        return False
    return address != 0


def crcs(const uint8_t[::1] data, const int64_t[::1] start, const int64_t[::1] length,
         int64_t[::1] out):
    """Write the CRC-32, with a cleared top bit, of each data[start:start + length] to ``out``.

    A slice ends at the end of the data at the latest. It is empty if it begins outside the data, or
    if its length is not positive.
    """
    cdef int64_t size = data.shape[0], begin, count
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef Py_ssize_t row
    with nogil:
        for row in range(start.shape[0]):
            begin, count = start[row], length[row]
            if begin < 0 or begin >= size or count <= 0:
                out[row] = 0
                continue
            if count > size - begin:
                count = size - begin
            out[row] = crc32(0, first + begin, <uint64_t>count) & CRC_MASK


def add_up(const int64_t[::1] group, const int64_t[::1] size, const int64_t[::1] body,
           const int64_t[::1] time, int64_t[:, :] sums):
    """Add messages to the sums of their groups: a column for each group, with the number of
    messages, their sizes, their body lengths, the first and the last time.

    Raises: IndexError for a group without a column, or if a message lacks a value.
    """
    cdef Py_ssize_t row, count = group.shape[0]
    cdef int64_t at
    if sums.shape[0] != 5 or size.shape[0] < count or body.shape[0] < count or (
            time.shape[0] < count):
        raise IndexError("columns have another shape")
    with nogil:
        for row in range(count):
            at = group[row]
            within(at, 1, sums.shape[1])
            sums[0, at] += 1
            sums[1, at] += size[row]
            sums[2, at] += body[row]
            sums[3, at] = min(sums[3, at], time[row])
            sums[4, at] = max(sums[4, at], time[row])


include "encode.pxi"
include "properties.pxi"
include "compare.pxi"
include "rows.pxi"
include "sound.pxi"
include "json.pxi"
include "reading.pxi"
include "sends.pxi"
include "repeats.pxi"
include "sha256.pxi"
