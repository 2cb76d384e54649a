# Messages by column become records: what append writes (spec: commitlog.md, section 2).


cdef inline void write_u16(uint8_t *at, uint32_t value) noexcept nogil:
    at[0], at[1] = <uint8_t>(value >> 8), <uint8_t>value


cdef inline void write_u32(uint8_t *at, uint32_t value) noexcept nogil:
    write_u16(at, value >> 16)
    write_u16(at + 2, value)


cdef inline void write_i64(uint8_t *at, int64_t value) noexcept nogil:
    write_u32(at, <uint32_t>(<uint64_t>value >> 32))
    write_u32(at + 4, <uint32_t>value)


cdef enum:  # rows of the numbers that `encode` takes
    FLAG, BORN_TIMESTAMP, STORE_TIMESTAMP, RECONSUME_TIMES, PREPARED_TRANSACTION_OFFSET, NUMBERS


def encode(uint8_t[::1] out, int64_t physical, const int64_t[::1] lane,
           const uint8_t[:, ::1] template, const int64_t[::1] head_size,
           const int64_t[::1] topic_size, const int64_t[::1] queue, int64_t[::1] next_offset,
           const int64_t[:, :] numbers,
           const uint8_t[::1] bodies, const int64_t[::1] body_start,
           const int64_t[::1] body_length,
           const uint8_t[::1] texts, const int64_t[::1] text_start,
           const int64_t[::1] text_length, int64_t[::1] queue_offset):
    """Write a record for each message to ``out``, back to back.

    ``physical`` is the physical offset of out[0]. A message's ``lane`` selects what it shares with
    others: row ``template[lane]`` contains the header of ``head_size`` bytes, and the topic after
    its length of ``topic_size`` bytes; ``next_offset[queue[lane]]`` is its queue offset, and is
    incremented. ``numbers`` (int64 [5, n]) are flag, born and store time, reconsume times and
    prepared transaction offset; ``bodies`` and ``texts`` (properties) are sliced by start and
    length. ``queue_offset`` receives the assigned queue offsets. Returns the number of written
    bytes.

    Raises: IndexError if a message does not fit into ``out`` or is not inside its data, ValueError
    for arrays of another shape.
    """
    cdef int64_t room = out.shape[0], width = template.shape[1], done = 0, size
    cdef int64_t head, topic, body_at, body_size, text_at, text_size, row_of_queue, place
    cdef Py_ssize_t number, row, count = lane.shape[0]
    cdef const uint8_t *body_data = &bodies[0] if bodies.shape[0] else NULL
    cdef const uint8_t *text_data = &texts[0] if texts.shape[0] else NULL
    cdef const uint8_t *shared
    cdef uint8_t *record
    cdef uint8_t *tail
    if numbers.shape[0] != NUMBERS:
        raise ValueError("numbers have another shape")
    if not count:
        return 0
    if not room:
        raise IndexError("outside of the data")
    with nogil:
        for number in range(count):
            # What it shares with others; both parts lie inside of the template's row.
            row = lane[number]
            head, topic = head_size[row], topic_size[row]
            shared = &template[row, 0]
            if head < HEAD_SIZE or head > width or topic < 0 or topic > width - head:
                raise IndexError("outside of the data")

            # Body and properties lie inside of their data, the record inside of what is left.
            body_at, body_size = body_start[number], body_length[number]
            text_at, text_size = text_start[number], text_length[number]
            if (body_at < 0 or body_at > bodies.shape[0] or body_size < 0
                    or body_size > bodies.shape[0] - body_at
                    or text_at < 0 or text_at > texts.shape[0] or text_size < 0
                    or text_size > texts.shape[0] - text_at or text_size > MAX_PROPERTIES):
                raise IndexError("outside of the data")
            size = head + body_size + topic + PROPERTIES_LENGTH_SIZE + text_size
            if size > room - done or size > MAX_SIZE:
                raise IndexError("outside of the data")
            record = &out[done]

            # The head: the template, and in it what every message has of its own.
            memcpy(record, shared, <size_t>head)
            row_of_queue = queue[row]
            place = next_offset[row_of_queue]
            next_offset[row_of_queue] = <int64_t>(<uint64_t>place + 1)
            queue_offset[number] = place
            write_u32(record + TOTAL_SIZE_AT, <uint32_t>size)
            write_u32(record + FLAG_AT, <uint32_t>numbers[FLAG, number])
            write_i64(record + QUEUE_OFFSET_AT, place)
            write_i64(record + PHYSICAL_OFFSET_AT,
                      <int64_t>(<uint64_t>physical + <uint64_t>done))
            write_i64(record + BORN_TIMESTAMP_AT, numbers[BORN_TIMESTAMP, number])
            # Behind the born host; counted from the end of the head behind the store host.
            tail = record + STORE_TIMESTAMP_AT
            if read_i32(record + SYS_FLAG_AT) & BORN_HOST_V6:
                tail += BORN_HOST_V6_MORE
            write_i64(tail, numbers[STORE_TIMESTAMP, number])
            tail = record + (head - HEAD_SIZE)
            write_u32(tail + RECONSUME_TIMES_AT, <uint32_t>numbers[RECONSUME_TIMES, number])
            write_i64(tail + PREPARED_TRANSACTION_OFFSET_AT,
                      numbers[PREPARED_TRANSACTION_OFFSET, number])
            write_u32(tail + BODY_LENGTH_AT, <uint32_t>body_size)

            # Body with its CRC, topic, properties behind their length.
            tail = record + head
            if body_size:
                memcpy(tail, body_data + body_at, <size_t>body_size)
                write_u32(record + BODY_CRC_AT,
                          crc32(0, tail, <uint64_t>body_size) & CRC_MASK)
                tail += body_size
            else:
                write_u32(record + BODY_CRC_AT, 0)
            memcpy(tail, shared + head, <size_t>topic)
            tail += topic
            write_u16(tail, <uint32_t>text_size)
            if text_size:
                memcpy(tail + PROPERTIES_LENGTH_SIZE, text_data + text_at, <size_t>text_size)
            done += size
    return done


def lengths(parts, int64_t[::1] out):
    """Write the length of each part to ``out``. Raises: IndexError if ``out`` is too short."""
    cdef Py_ssize_t row = 0
    for part in parts:
        out[row] = len(part)
        row += 1


def holds(const uint8_t[::1] data, const uint8_t[::1] word):
    """Return whether the first three bytes of ``word`` occur in ``data``.

    A compiler vectorizes this loop; every read ends before the data does.

    Raises: ValueError if ``word`` has fewer bytes.
    """
    cdef Py_ssize_t at, last = data.shape[0] - 2
    cdef const uint8_t *text
    cdef uint8_t first, second, third, hit = 0
    if word.shape[0] < 3:
        raise ValueError("a word has three bytes")
    if last <= 0:
        return False
    text, first, second, third = &data[0], word[0], word[1], word[2]
    with nogil:
        for at in range(last):
            hit |= (text[at] == first) & (text[at + 1] == second) & (text[at + 2] == third)
    return hit != 0
