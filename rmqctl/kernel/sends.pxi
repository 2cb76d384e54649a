# Frames of producers become messages: what a writable server takes most of (spec: remoting.md §1, §3.4).
#
# Anything but a header as clients write it, strict JSON with texts that need no second look, ends
# the run: others read it more leniently, and know what to answer.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport strlen

cdef enum:  # what a field of the header is to be, and then its place among the numbers
    OTHER_TEXT, OTHER_INT, OTHER_BOOL, NO_BATCH, TOPIC_NAME, PROPERTIES_TEXT, FIRST_NUMBER
    MOST_SENT_PROPERTIES = 4096
    TOP_KEYS = 8, CODE_KEY = 0, EXT_KEY = 1, FLAG_KEY = 2, OPAQUE_KEY = 3, LAST_NUMBER = 4
    REQUEST_FLAGS = 2  # one-way, or nothing

TAKES = {"text": OTHER_TEXT, "int": OTHER_INT, "long": OTHER_INT, "bool": OTHER_BOOL, "batch": NO_BATCH,
         "topic": TOPIC_NAME, "properties": PROPERTIES_TEXT, "queueId": FIRST_NUMBER,
         "flag": FIRST_NUMBER + 1, "sysFlag": FIRST_NUMBER + 2, "bornTimestamp": FIRST_NUMBER + 3,
         "reconsumeTimes": FIRST_NUMBER + 4}

cdef const char **top_keys = ["code", "extFields", "flag", "opaque", "version", "language",
                              "remark", "serializeTypeCurrentRPC"]


cdef struct Sent:
    int64_t code, flag, opaque
    int64_t numbers[5]
    const uint8_t *topic
    const uint8_t *properties
    int64_t topic_size, properties_size


cdef inline const uint8_t *text_end(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Return the quote that ends a text of printable ASCII without escapes; NULL for any other
    text.
    """
    while at < end:
        if at[0] == QUOTE:
            return at
        if at[0] < 0x20 or at[0] > 0x7E or at[0] == BACKSLASH:
            return NULL
        at += 1
    return NULL


cdef const uint8_t *number_end(const uint8_t *at, const uint8_t *end, bint long, int64_t *number
                               ) noexcept nogil:
    """Return the position after a number of 32 bits, or of 18 digits; NULL if there is no such
    number.
    """
    cdef bint negative = at < end and at[0] == 45
    cdef const uint8_t *first
    cdef int64_t value = 0
    at += negative
    first = at
    while at < end and 48 <= at[0] <= 57 and at - first < 18:
        value = 10 * value + at[0] - 48
        at += 1
    if at == first or (first[0] == 48 and (at - first > 1 or negative)):
        return NULL
    number[0] = -value if negative else value
    if not long and number[0] != <int32_t>number[0]:
        return NULL
    return at


cdef const uint8_t *unescaped(const uint8_t *at, const uint8_t *end, uint8_t *out, int64_t *count
                              ) noexcept nogil:
    """Return the quote that ends a text, and write its bytes to ``out`` (at most
    MOST_SENT_PROPERTIES); NULL if the text has escapes beyond ASCII, or more bytes. UTF-8 is not
    checked.
    """
    cdef int64_t to = 0, digit
    cdef uint8_t char, value
    cdef int place
    while at < end and to < MOST_SENT_PROPERTIES:
        char = at[0]
        at += 1
        if char == QUOTE:
            count[0] = to
            return at - 1
        if char < 0x20:
            return NULL
        if char == BACKSLASH:
            # As all clients write what separates properties: \u0001 and \u0002.
            if end - at < 5 or at[0] != 117 or at[1] != 48 or at[2] != 48:
                return NULL
            value = 0
            for place in range(3, 5):
                digit = at[place]
                if 48 <= digit <= 57:
                    digit -= 48
                elif 97 <= digit <= 102:
                    digit -= 87
                elif 65 <= digit <= 70:
                    digit -= 55
                else:
                    return NULL
                value = <uint8_t>(16 * value + digit)
            if value >= 0x80:
                return NULL
            char = value
            at += 5
        out[to] = char
        to += 1
    return NULL


cdef const uint8_t *fields_end(const uint8_t *at, const uint8_t *end, const uint8_t *takes,
                               uint32_t wanted, uint8_t *scratch, Sent *sent) noexcept nogil:
    """Return the position after an object of fields at ``at``, and write the fields to ``sent``;
    NULL if the object is not in plain form, or lacks one of the ``wanted`` fields (bits by letter).
    """
    cdef const uint8_t *name
    cdef const uint8_t *value
    cdef const uint8_t *stop
    cdef uint32_t seen = 0, bit
    cdef uint8_t kind
    cdef int64_t number
    if at >= end or at[0] != 123:
        return NULL
    at += 1
    while True:
        if at >= end or at[0] != QUOTE:
            return NULL
        name = at + 1
        stop = text_end(name, end)
        if stop == NULL or end - stop < 3 or stop[1] != COLON or stop[2] != QUOTE:
            return NULL
        value = stop + 3
        kind = OTHER_TEXT
        if stop - name == 1 and 97 <= name[0] <= 122:
            bit = <uint32_t>1 << (name[0] - 97)
            kind = takes[name[0] - 97]
            if seen & bit:
                return NULL
            seen |= bit
        if kind == PROPERTIES_TEXT:
            stop = unescaped(value, end, scratch, &sent.properties_size)
            sent.properties = scratch
        else:
            stop = text_end(value, end)
        if stop == NULL:
            return NULL
        if kind == TOPIC_NAME:
            sent.topic, sent.topic_size = value, stop - value
        elif kind == OTHER_BOOL or kind == NO_BATCH:
            if not (stop - value == 5 and memcmp(value, b"false", 5) == 0) and not (
                    kind == OTHER_BOOL and stop - value == 4 and memcmp(value, b"true", 4) == 0):
                return NULL
        elif kind == OTHER_INT:
            if number_end(value, stop, False, &number) != stop:
                return NULL
        elif kind >= FIRST_NUMBER:
            if number_end(value, stop, kind == FIRST_NUMBER + 3,
                          &sent.numbers[kind - FIRST_NUMBER]) != stop:
                return NULL
        at = stop + 1
        if at >= end:
            return NULL
        if at[0] == 125:
            return at + 1 if seen & wanted == wanted else NULL
        if at[0] != COMMA:
            return NULL
        at += 1


cdef bint is_send(const uint8_t *at, const uint8_t *end, const uint8_t *takes, uint32_t wanted,
                  uint8_t *scratch, Sent *sent) noexcept nogil:
    """Return whether these bytes are the header of a request with fields of this kind."""
    cdef const uint8_t *name
    cdef const uint8_t *stop
    cdef uint32_t seen = 0
    cdef int key
    cdef int64_t number, count
    memset(sent, 0, sizeof(Sent))
    if at >= end or at[0] != 123:
        return False
    at += 1
    while True:
        if at >= end or at[0] != QUOTE:
            return False
        name = at + 1
        stop = text_end(name, end)
        if stop == NULL or end - stop < 2 or stop[1] != COLON:
            return False
        count, at = stop - name, stop + 2
        key = 0
        while key < TOP_KEYS and not (
                <int64_t>strlen(top_keys[key]) == count
                and memcmp(name, top_keys[key], <size_t>count) == 0):
            key += 1
        if key == TOP_KEYS or seen >> key & 1:
            return False
        seen |= <uint32_t>1 << key
        if key == EXT_KEY:
            at = fields_end(at, end, takes, wanted, scratch, sent)
        elif at < end and at[0] == QUOTE:
            if key <= LAST_NUMBER:
                return False
            at = text_end(at + 1, end)
            if at != NULL:
                at += 1
        elif at < end and end - at >= 4 and key > LAST_NUMBER and memcmp(at, b"null", 4) == 0:
            at += 4
        else:
            at = number_end(at, end, False, &number)
            if key == CODE_KEY:
                sent.code = number
            elif key == FLAG_KEY:
                sent.flag = number
            elif key == OPAQUE_KEY:
                sent.opaque = number
        if at == NULL or at >= end:
            return False
        if at[0] == 125:
            return at + 1 == end and seen & 1 << EXT_KEY != 0
        if at[0] != COMMA:
            return False
        at += 1


def sends(data, Py_ssize_t at, int64_t limit, int head_size, int counted, int code,
          const uint8_t[::1] takes, uint32_t wanted, Py_ssize_t most):
    """Return the messages of at most ``most`` complete frames from data[at] on that are plain
    sends.

    ``limit`` is the maximum length that a frame may state. A frame has ``head_size`` bytes before
    its header: its length, which does not include its own ``counted`` bytes, and the header's
    length, with its kind in the highest eight bits. ``takes`` (26 bytes) has the meaning of each
    letter that names a field (of `TAKES`; others are texts), ``wanted`` (bits) the required ones.

    Each item is (end of the frame, opaque, flag, topic, queue id, flag of the message, system
    flags, born time, times of consumption, properties, body).
    """
    cdef Py_buffer view
    if takes.shape[0] != 26 or counted != 4 or head_size != 8 or at < 0:
        raise ValueError("a frame of another shape")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)  # so that it stays where it is
    try:
        return sends_in(<const uint8_t *>view.buf, view.len, at, limit, head_size, counted, code,
                        &takes[0], wanted, most)
    finally:
        PyBuffer_Release(&view)


cdef list sends_in(const uint8_t *base, Py_ssize_t size, Py_ssize_t at, int64_t limit,
                   int head_size, int counted, int code, const uint8_t *takes, uint32_t wanted,
                   Py_ssize_t most):
    """Return the same for ``size`` bytes at a pointer."""
    cdef uint8_t scratch[MOST_SENT_PROPERTIES]
    cdef Sent sent
    cdef const uint8_t *header
    cdef int64_t length, word, body
    cdef list found = []
    cdef object topic = None, properties
    cdef const uint8_t *last = NULL
    cdef int64_t last_size = -1
    while len(found) < most and size - at >= head_size:
        length, word = read_i32(base + at), read_u32(base + at + counted)
        if length < counted or length > limit or length > size - at - counted or (
                word >> 24 or word > length - counted):
            break
        header = base + at + head_size
        if not is_send(header, header + word, takes, wanted, scratch, &sent) or (
                sent.code != code or sent.flag & ~REQUEST_FLAGS or sent.topic == NULL):
            break
        if sent.topic_size != last_size or memcmp(sent.topic, last, <size_t>last_size):
            topic = PyUnicode_DecodeUTF8(<const char *>sent.topic, sent.topic_size, NULL)
            last, last_size = sent.topic, sent.topic_size
        try:
            properties = PyUnicode_DecodeUTF8(<const char *>scratch, sent.properties_size, NULL)
        except UnicodeDecodeError:
            break
        body = at + head_size + word
        at += counted + length
        found.append((at, sent.opaque, sent.flag, topic, sent.numbers[0], sent.numbers[1],
                      sent.numbers[2], sent.numbers[3], sent.numbers[4], properties,
                      PyBytes_FromStringAndSize(<const char *>base + body, at - body)))
    return found
