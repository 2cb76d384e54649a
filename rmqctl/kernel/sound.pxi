# Records that are sound in all that a store tells of them, held against entries and index in one
# pass over their bytes. The first that is not, or of which something is not known yet, ends it.

cdef enum:  # why a pass ends: behind it stand what is asked for, or nothing
    AT_END, NOT_SOUND, ANOTHER_RUN, NEW_TOPIC, NEW_QUEUE, NO_UNIT, NO_ENTRY, NO_ROOM
    UNREADABLE

SOUND_ENDS = ("at_end", "not_sound", "another_run", "new_topic", "new_queue", "no_unit",
              "no_entry", "no_room", "unreadable")

cdef enum:  # bytes that are passed with the interpreter locked
    NEAR = 16384

cdef enum:  # bytes that are fetched into the processor's cache before a record, and a line of it
    SOON = 4096
    LINE = 64

cdef enum:  # cells of the state
    S_AT, S_MESSAGES, S_BYTES, S_LOOSE, S_KEYED, S_FIRST, S_NEWEST, S_OLDEST, S_SEALED, S_FIRST_V2
    S_ENTRY, S_WINDOW, S_FILE, S_INTERVALS, S_HOST, S_HOST_1, S_HOST_2, S_END, S_LAST, S_LAST_END, S_BAD, S_BAD_BYTES
    S_EXTRA, S_FIRST_TIME, S_TIME, S_ASTRAY
    S_ASKED, S_ASKED_1, S_CELLS

SOUND_STATE = ("at", "messages", "bytes", "loose", "keyed", "first", "newest", "oldest", "sealed",
               "first_v2", "entry", "window", "file", "intervals", "host", "host_1", "host_2",
               "end", "last", "last_end", "bad", "bad_bytes", "extra", "first_time", "time",
               "astray", "asked", "asked_1")

cdef enum:  # cells of a topic, and of a queue
    T_SHARP, T_FIRST, T_COUNT, T_KIND, T_CELLS

cdef enum:
    Q_FIRST, Q_COUNT, Q_PLACE, Q_LEAST, Q_NEXT, Q_PHYSICAL, Q_INTACT, Q_CELLS

cdef enum:  # kinds of topics
    T_PLAIN, T_SCHEDULE, T_OTHER

cdef enum:  # what messages are held against
    WITH_ROWS = 1
    WITH_ENTRIES = 2
    TIMED_ROWS = 4

cdef enum:  # what a name of a property stands for
    N_TAGS, N_UNIQUE, N_KEYS, N_DELAY, N_INNER, N_KEPT, N_SEAL, NAMES

cdef enum:  # cells of a run of a queue, of a record with a damaged body, and of an index entry
    INTERVAL_CELLS = 5
    BAD_CELLS = 7
    EXTRA_CELLS = 3
    LOST_CELLS = 3

cdef enum:
    HEAD_CELLS = 11
    MOST_DELAY_DIGITS = 9


cdef struct Name:
    const uint8_t *text
    int64_t size


cdef inline bint has_name(const uint8_t *part, int64_t count, const Name *name) noexcept nogil:
    """Return whether a part of ``count`` bytes begins with a name and is longer than the name."""
    return count > name.size and not memcmp(part, name.text, <size_t>name.size)


cdef uint32_t hashed_text(uint32_t value, const uint8_t *text, int64_t count) noexcept nogil:
    """Return the same as `hashed_on` for UTF-8, which the caller has checked: the hash is computed
    over UTF-16 units.
    """
    cdef int64_t at = 0
    cdef uint32_t code
    cdef int more
    while at < count:
        code = text[at]
        more = 0 if code < 0x80 else 1 if code < 0xE0 else 2 if code < 0xF0 else 3
        if more:
            code &= 0x3F >> more
        at += 1
        while more and at < count:
            code = code << 6 | (text[at] & 0x3F)
            at += 1
            more -= 1
        if code > 0xFFFF:
            code -= 0x10000
            value = value * 31u + (0xD800 | code >> 10)
            code = 0xDC00 | (code & 0x3FF)
        value = value * 31u + code
    return value


cdef inline int64_t absolute(uint32_t hashed) noexcept nogil:
    """Return the hash in an index entry: Java's abs of the least number is negative, and counts as
    0.
    """
    cdef int64_t value = <int32_t>hashed
    return value if value >= 0 else 0 if value == INT32_MIN else -value


cdef void put_head(const uint8_t *record, int64_t place, int64_t *out) noexcept nogil:
    """Write the numbers of a record's header that `rmqctl.scan.headers` needs; the caller has
    checked that these bytes are a record.
    """
    cdef int32_t flag = read_i32(record + SYS_FLAG_AT)
    cdef const uint8_t *at = record + BORN_HOST_AT + ADDRESS_SIZE
    cdef const uint8_t *host
    cdef int word, words = 1
    cdef uint64_t number
    if flag & BORN_HOST_V6:
        at += BORN_HOST_V6_MORE
    out[0] = read_i32(at)
    out[8] = read_i64(at + 4)
    host = at + 12
    at = host + ADDRESS_SIZE
    if flag & STORE_HOST_V6:
        at += STORE_HOST_V6_MORE
        words = (ADDRESS_SIZE + STORE_HOST_V6_MORE) // 4
    out[1] = read_i32(at)
    out[2] = flag
    out[3] = read_i32(at + 4)
    out[4] = read_i64(at + 8)
    out[5] = read_i32(record + QUEUE_ID_AT)
    out[6] = read_i64(record + QUEUE_OFFSET_AT)
    out[7] = place
    number = <uint64_t>out[1]
    for word in range(words):
        number = number * 1000003u + <uint64_t><int64_t>read_i32(host + 4 * word)
    out[9] = <int64_t>(number * 2 + (words > 1))
    out[10] = 0


cdef struct Message:
    Record found
    const uint8_t *tags
    const uint8_t *unique
    const uint8_t *keys
    const uint8_t *delay
    int64_t tags_size, unique_size, keys_size, delay_size
    bint intact, sealed


cdef int take_names(const uint8_t[::1] names, const int64_t[::1] ends, Name *name) except -1:
    """Read the names of properties, which are back to back in ``names``."""
    cdef int64_t place = 0
    cdef int number
    if ends.shape[0] != NAMES:
        raise ValueError("other names of properties")
    for number in range(NAMES):
        within(place, ends[number] - place, names.shape[0])
        if ends[number] <= place:
            raise ValueError("no name of a property")
        name[number].text = &names[place]
        name[number].size = ends[number] - place
        place = ends[number]
    return 0


cdef inline bint look(const uint8_t *first, int64_t size, int64_t at, int64_t base,
                      const Name *name, Message *seen) noexcept nogil:
    """Return whether a record with plain properties is at ``at``: proven by an appended CRC or
    sound by their form, without further queues, and without a mark of a repair at the start.

    ``seen`` receives the positions in the record (the last value of each name counts), and whether
    the body matches its CRC; if not, the record has no appended CRC.
    """
    cdef const uint8_t *record = first + at
    cdef const uint8_t *part
    cdef const uint8_t *stop
    cdef const uint8_t *mark
    cdef const uint8_t *end
    cdef int64_t count
    cdef uint32_t crc
    cdef int digit
    cdef bint good = True
    if not is_record(first, size, at, base, &seen.found):
        return False
    seen.intact = read_i32(record + BODY_CRC_AT) == <int64_t>(CRC_MASK & crc32(
        0, first + seen.found.body_start, <uint64_t>seen.found.body_length))
    count = seen.found.properties_length
    part = first + seen.found.properties_start
    stop = part + count

    # The appended CRC proves the whole record; else properties must look sound.
    seen.sealed = count >= SEAL_SIZE and not memcmp(
        stop - SEAL_SIZE, name[N_SEAL].text, <size_t>name[N_SEAL].size)
    if seen.sealed:
        if not seen.intact:
            return False
        crc = CRC_MASK & crc32(0, record, <uint64_t>(seen.found.total_size - SEAL_SIZE))
        for digit in range(SEAL_DIGITS):
            good &= (stop - 1 - SEAL_DIGITS)[digit] == 48 + crc % 10
            crc //= 10
        if not good:
            return False
    elif not is_text(part, count):
        return False
    if count >= name[N_KEPT].size and not memcmp(
            part, name[N_KEPT].text, <size_t>name[N_KEPT].size):
        return False

    # All of them, in one pass.
    seen.tags = seen.unique = seen.keys = seen.delay = NULL
    seen.tags_size = seen.unique_size = seen.keys_size = seen.delay_size = 0
    while part < stop:
        mark = <const uint8_t *>memchr(part, 2, <size_t>(stop - part))
        end = mark if mark != NULL else stop
        count = end - part
        if part[0] == name[N_KEYS].text[0] and has_name(part, count, &name[N_KEYS]):
            seen.keys = part + name[N_KEYS].size
            seen.keys_size = count - name[N_KEYS].size
        elif part[0] == name[N_UNIQUE].text[0] and has_name(part, count, &name[N_UNIQUE]):
            seen.unique = part + name[N_UNIQUE].size
            seen.unique_size = count - name[N_UNIQUE].size
        elif part[0] == name[N_TAGS].text[0] and has_name(part, count, &name[N_TAGS]):
            seen.tags = part + name[N_TAGS].size
            seen.tags_size = count - name[N_TAGS].size
        elif part[0] == name[N_DELAY].text[0] and has_name(part, count, &name[N_DELAY]):
            seen.delay = part + name[N_DELAY].size
            seen.delay_size = count - name[N_DELAY].size
        elif has_name(part, count, &name[N_INNER]) or (
                count and not seen.sealed and (part[0] == 1 or memchr(
                    part, 1, <size_t>count) == NULL)):
            return False
        part = end + 1
    return True


cdef inline int32_t topic_of(const uint8_t *text, int64_t count, const uint8_t[::1] known,
                             const int64_t[:, ::1] places, const int32_t[::1] cells
                             ) except -2 nogil:
    """Return the number of a topic in a `TextTable`, -1 for a new topic."""
    cdef int64_t cell = cell_of(text, count, known, places, cells)
    return cells[cell]


cdef inline bint hash_of(uint32_t base, const uint8_t *text, int64_t count, bint sealed,
                         uint32_t *out) noexcept nogil:
    """Write the hash of a text with hash ``base`` followed by a property's text; return False if
    the text may not be UTF-8.
    """
    cdef uint8_t bits = 0
    out[0] = hashed_on(base, text, count, &bits)
    if bits & 0x80:
        if sealed:
            return False
        out[0] = hashed_text(base, text, count)
    return True


cdef inline bint code_of(const Message *seen, bint scheduled, int64_t when,
                         const int64_t[::1] delays, int64_t *out) noexcept nogil:
    """Write the tags code of a message: the hash of its tags, or the deliver time of a delayed
    message. Return False if the caller must compute it.
    """
    cdef uint32_t hashed = 0
    cdef int64_t level = 0
    cdef int digit
    if seen.tags_size and not hash_of(0, seen.tags, seen.tags_size, seen.sealed, &hashed):
        return False
    out[0] = <int32_t>hashed
    if not scheduled or not seen.delay_size:
        return True
    if seen.delay_size > MOST_DELAY_DIGITS or not delays.shape[0]:
        return False
    for digit in range(<int>seen.delay_size):
        if not 48 <= seen.delay[digit] <= 57:
            return False
        level = level * 10 + seen.delay[digit] - 48
    level = min(level, delays.shape[0] - 1)
    if level > 0:
        out[0] = when + (&delays[0])[level]
    return True


cdef int sound_until(const uint8_t[::1] data, const Name *name, int64_t base, int64_t end, int what,
                     int64_t[::1] state, const uint8_t[::1] known,
                     const int64_t[:, ::1] known_places, const int32_t[::1] known_cells,
                     const int64_t[:, ::1] topics, const int32_t[::1] cells, int64_t[:, ::1] queues,
                     int64_t[:, ::1] intervals, const uint8_t[::1] units,
                     const int64_t[::1] unit_times, const uint8_t[::1] entries,
                     const int64_t[::1] starts, const int64_t[::1] begins,
                     const int64_t[::1] delays, int64_t[:, ::1] heads, int64_t[:, ::1] bad,
                     int64_t[:, ::1] lost, int64_t[:, ::1] extra) except -1 nogil:
    """Skip sound records that start before ``end``, as `sound` says."""
    cdef int64_t size = data.shape[0], at = state[S_AT]
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef const uint8_t *record
    cdef const uint8_t *part
    cdef const uint8_t *mark
    cdef const uint8_t *entry
    cdef const uint8_t *key
    cdef const uint8_t *key_end
    cdef const uint8_t *part_end
    cdef const uint8_t *host
    cdef const uint8_t *born
    cdef Message seen
    cdef Record *found
    cdef int64_t messages = state[S_MESSAGES], in_bytes = state[S_BYTES], loose = state[S_LOOSE]
    cdef int64_t keyed = state[S_KEYED], newest = state[S_NEWEST], oldest = state[S_OLDEST]
    cdef int64_t first_time = state[S_FIRST_TIME], time = state[S_TIME], astray = state[S_ASTRAY]
    cdef int64_t entry_number = state[S_ENTRY], file = state[S_FILE], window = state[S_WINDOW]
    cdef int64_t held = entries.shape[0] // ENTRY_SIZE, files = begins.shape[0]
    cdef int64_t unit_count = units.shape[0] // UNIT_SIZE
    cdef int64_t before = -1, last = -1, last_end = 0, reached = -1, reached_end = 0, ahead = at
    cdef int64_t unique_size, confirmed, code, place
    cdef int64_t when, prepared, stored, born_time, number, next_entry, next_file, key_size
    cdef int64_t *queue
    cdef uint64_t host_0 = <uint64_t>state[S_HOST], host_1 = <uint64_t>state[S_HOST_1]
    cdef uint64_t host_2 = <uint64_t>state[S_HOST_2], word_0, word_1, word_2
    cdef uint32_t hashed, key_hash
    cdef int64_t lost_count = lost.shape[0], next_lost = 0, extras = state[S_EXTRA], next_extra
    cdef int32_t flag, queue_id, seconds
    cdef int kind, transaction, why = AT_END
    cdef int32_t topic
    cdef bint run_sealed = state[S_SEALED] != 0, with_rows = (what & WITH_ROWS) != 0
    cdef bint with_entries = (what & WITH_ENTRIES) != 0, timed = (what & TIMED_ROWS) != 0, good
    cdef bint with_keys
    place = -1
    while at < end:
        # What is needed soon, while this record is examined.
        while ahead < min(at + SOON, size):
            rmqctl_soon_read(first + ahead)
            ahead += LINE
        # By itself: a record, its checksums, and what its head says.
        why = NOT_SOUND
        if not look(first, size, at, base, name, &seen):
            while next_lost < lost_count and lost[next_lost, 0] < at:
                next_lost += 1
            if next_lost == lost_count or lost[next_lost, 0] != at or not (
                    0 < lost[next_lost, 1] <= size - at):
                break
            lost[next_lost, 2] = 1
            at += lost[next_lost, 1]
            why = AT_END
            continue
        found = &seen.found
        record = first + at
        flag = read_i32(record + SYS_FLAG_AT)
        born = record + BORN_HOST_AT
        host = born + ADDRESS_SIZE + 12 + (BORN_HOST_V6_MORE if flag & BORN_HOST_V6 else 0)
        part = host + ADDRESS_SIZE + (STORE_HOST_V6_MORE if flag & STORE_HOST_V6 else 0)
        when = read_i64(host - 8)
        born_time = read_i64(record + BORN_TIMESTAMP_AT)
        prepared = read_i64(part + 8)
        queue_id = read_i32(record + QUEUE_ID_AT)
        stored = read_i64(record + QUEUE_OFFSET_AT)
        kind = flag & KIND_BITS
        transaction = flag & TRANSACTION_MASK
        if (read_u32(host - 12) > MOST_PORT or read_u32(part) > MOST_PORT
                or read_u32(part + 4) > MOST_TIMES or prepared < 0 or prepared > base + at
                or queue_id < 0 or flag & ~KNOWN_FLAGS
                or (kind > KIND_MOST and kind & COMPRESSED)
                or (stored != 0 and flag & TRANSACTION_PREPARED)
                or when < <int64_t>EARLIEST_SECONDS * 1000 or born_time < 0
                or born_time - <int64_t>YEARS_SECONDS * 1000 > when
                or (read_u32(host - 12) == 0 and read_u32(born) == 0)):
            break

        # It goes on with a run: the same host and kind of record, times that lie together.
        memcpy(&word_0, host, 8)
        word_1 = word_2 = 0
        if flag & STORE_HOST_V6:
            memcpy(&word_1, host + 8, 8)
            word_2 = read_u32(host + 16) + (<uint64_t>1 << 32)
        if messages and seen.intact and (word_0 != host_0 or word_1 != host_1 or word_2 != host_2
                         or seen.sealed != run_sealed
                         or when - oldest > <int64_t>HALF_A_YEAR_SECONDS * 1000
                         or newest - when > <int64_t>HALF_A_YEAR_SECONDS * 1000):
            why = ANOTHER_RUN
            break

        if not seen.intact and state[S_BAD] >= bad.shape[0]:
            why = NO_ROOM
            break

        # Its topic, and what its tags code has to be.
        why = NEW_TOPIC
        topic = topic_of(first + found.topic_start, found.topic_length, known, known_places,
                         known_cells)
        if topic < 0:
            state[S_ASKED], state[S_ASKED_1] = found.topic_start, found.topic_length
            break
        why = NOT_SOUND
        if topics[topic, T_KIND] == T_OTHER or not code_of(
                &seen, topics[topic, T_KIND] == T_SCHEDULE, when, delays, &code):
            break
        confirmed = 0

        # Its consume queue entry.
        queue = NULL
        if with_rows:
            confirmed += seen.tags_size
            if not transaction & TRANSACTION_PREPARED:
                why = NEW_QUEUE
                place = -1
                if queue_id < topics[topic, T_COUNT]:
                    place = cells[topics[topic, T_FIRST] + queue_id]
                if place < 0:
                    state[S_ASKED], state[S_ASKED_1] = topic, queue_id
                    break
                queue = &queues[place, 0]
                why = NO_UNIT
                number = stored - queue[Q_FIRST]
                if stored < queue[Q_FIRST] or number >= queue[Q_COUNT]:
                    state[S_ASKED], state[S_ASKED_1] = place, stored
                    break
                why = NOT_SOUND
                number += queue[Q_PLACE]
                within(number, 1, unit_count)
                entry = &units[0] + number * UNIT_SIZE
                if (read_i64(entry + UNIT_PHYSICAL_OFFSET_AT) != base + at
                        or read_i32(entry + UNIT_SIZE_AT) != found.total_size
                        or read_i64(entry + UNIT_TAGS_CODE_AT) != code
                        or (timed and unit_times[number] != when)):
                    break
                if queue[Q_NEXT] != stored and queue[Q_NEXT] > queue[Q_LEAST] and (
                        state[S_INTERVALS] >= intervals.shape[0]):
                    why = NO_ROOM
                    break

        # Its index entries: of the unique key, and of each of the keys between spaces.
        next_entry, next_file, next_extra, good = entry_number, file, extras, True
        with_keys = seen.unique_size or seen.keys_size
        unique_size = seen.unique_size
        if with_entries:
            confirmed += unique_size
            hashed = <uint32_t>topics[topic, T_SHARP]
            key, key_end = seen.keys, seen.keys + seen.keys_size
            while unique_size or key < key_end:
                if unique_size:
                    part, part_end, unique_size = seen.unique, seen.unique + unique_size, 0
                else:
                    part = key
                    mark = <const uint8_t *>memchr(key, SPACE, <size_t>(key_end - key))
                    part_end = mark if mark != NULL else key_end
                    key = part_end + 1
                    if part == part_end:
                        continue
                    confirmed += part_end - part
                if transaction == TRANSACTION_ROLLBACK:
                    continue
                while True:
                    key_size = next_entry - window
                    if key_size < 0 or key_size >= held:
                        why, good = NO_ENTRY, False
                        break
                    entry = &entries[0] + key_size * ENTRY_SIZE
                    if read_i64(entry + ENTRY_PHYSICAL_OFFSET_AT) >= base + at:
                        break
                    if next_extra >= extra.shape[0]:
                        why, good = NO_ROOM if extras else NOT_SOUND, False
                        break
                    extra[next_extra, 0] = read_i64(entry + ENTRY_PHYSICAL_OFFSET_AT)
                    extra[next_extra, 1] = read_i32(entry + ENTRY_KEY_HASH_AT)
                    extra[next_extra, 2] = next_entry
                    next_extra += 1
                    next_entry += 1
                if not good:
                    break
                good = hash_of(hashed, part, part_end - part, seen.sealed, &key_hash)
                if not good:
                    break
                while next_file < files and next_entry >= starts[next_file + 1]:
                    next_file += 1
                good = next_file < files and (
                    read_i64(entry + ENTRY_PHYSICAL_OFFSET_AT) == base + at) and (
                    read_i32(entry + ENTRY_KEY_HASH_AT) == absolute(key_hash))
                if not good:
                    break
                seconds = read_i32(entry + ENTRY_TIME_DIFF_AT)
                number = begins[next_file] + <int64_t>seconds * 1000
                if (number > when or number <= when - 1000) and (
                        seconds != 0 or when > number):
                    good = False
                    break
                next_entry += 1
            if not good:
                break

        # All of it agrees: what it leaves.
        entry_number, file, extras = next_entry, next_file, next_extra
        if queue != NULL:
            if queue[Q_NEXT] != stored or queue[Q_NEXT] == queue[Q_LEAST]:
                if queue[Q_NEXT] > queue[Q_LEAST]:
                    number = state[S_INTERVALS]
                    intervals[number, 0] = place
                    intervals[number, 1] = queue[Q_LEAST]
                    intervals[number, 2] = queue[Q_NEXT]
                    intervals[number, 3] = queue[Q_PHYSICAL]
                    intervals[number, 4] = queue[Q_INTACT]
                    state[S_INTERVALS] = number + 1
                queue[Q_LEAST], queue[Q_PHYSICAL], queue[Q_INTACT] = stored, base + at, 0
            queue[Q_NEXT] = stored + 1
            if seen.intact:
                queue[Q_INTACT] = stored + 1
        keyed += with_keys
        if found.variant & 1 and state[S_FIRST_V2] < 0:
            state[S_FIRST_V2] = base + at
        reached = at
        at = reached_end = at + found.total_size
        why = AT_END
        if not seen.intact:
            number = state[S_BAD]
            bad[number, 0], bad[number, 1] = base + reached, found.total_size
            bad[number, 2], bad[number, 3], bad[number, 4] = topic, queue_id, stored
            bad[number, 5], bad[number, 6] = found.body_length, flag
            state[S_BAD] = number + 1
            state[S_BAD_BYTES] += found.total_size
            continue
        if not seen.sealed:
            loose += found.properties_length - confirmed
            if flag & (BORN_HOST_V6 | STORE_HOST_V6):
                loose += (BORN_HOST_V6_MORE if flag & BORN_HOST_V6 else 0) + (
                    STORE_HOST_V6_MORE if flag & STORE_HOST_V6 else 0)
            if not with_rows:
                loose += found.topic_length
        if messages < 2:
            put_head(record, base + reached, &heads[messages, 0])
        if not messages:
            host_0, host_1, host_2, run_sealed = word_0, word_1, word_2, seen.sealed
            newest = oldest = first_time = time = when
            astray = 0
            state[S_FIRST] = base + reached
        astray |= when < time - TIME_SLACK or when - time > <int64_t>LONG_PAUSE_SECONDS * 1000
        astray |= (when < time) << 1
        time = when
        before, last, last_end = last, reached, at
        newest, oldest = max(newest, when), min(oldest, when)
        messages += 1
        in_bytes += found.total_size

    # The last two heads, which the next pass or the caller goes on with.
    if last >= 0:
        if before >= 0:
            put_head(first + before, base + before, &heads[2, 0])
        else:
            memcpy(&heads[2, 0], &heads[3, 0], HEAD_CELLS * sizeof(int64_t))
        put_head(first + last, base + last, &heads[3, 0])
        state[S_END] = base + last_end
    if reached >= 0:
        state[S_LAST], state[S_LAST_END] = base + reached, base + reached_end
    state[S_AT], state[S_MESSAGES], state[S_BYTES], state[S_LOOSE] = at, messages, in_bytes, loose
    state[S_KEYED], state[S_NEWEST], state[S_OLDEST] = keyed, newest, oldest
    state[S_ENTRY], state[S_FILE], state[S_SEALED] = entry_number, file, run_sealed
    state[S_EXTRA] = extras
    state[S_FIRST_TIME], state[S_TIME], state[S_ASTRAY] = first_time, time, astray
    state[S_HOST], state[S_HOST_1] = <int64_t>host_0, <int64_t>host_1
    state[S_HOST_2] = <int64_t>host_2
    return why


cdef int caught_until(const uint8_t[::1] data, const Name *name, int64_t base, int64_t end,
                      int what, int64_t[::1] state, const uint8_t[::1] known,
                      const int64_t[:, ::1] known_places, const int32_t[::1] known_cells,
                      const int64_t[:, ::1] topics, const int32_t[::1] cells,
                      int64_t[:, ::1] queues, int64_t[:, ::1] intervals, const uint8_t[::1] units,
                      const int64_t[::1] unit_times, const uint8_t[::1] entries,
                      const int64_t[::1] starts, const int64_t[::1] begins,
                      const int64_t[::1] delays, int64_t[:, ::1] heads, int64_t[:, ::1] bad,
                      int64_t[:, ::1] lost, int64_t[:, ::1] extra, bint mapped) except -1 nogil:
    """Skip sound records as `sound_until`; in a mapping, return UNREADABLE if a page of it cannot
    be read. All arrays are then without meaning.
    """
    cdef sigjmp_buf here
    cdef int why
    if not mapped:
        return sound_until(data, name, base, end, what, state, known, known_places, known_cells,
                           topics, cells, queues, intervals, units, unit_times, entries, starts,
                           begins, delays, heads, bad, lost, extra)
    if rmqctl_enter(&here):
        rmqctl_leave()
        return UNREADABLE
    why = sound_until(data, name, base, end, what, state, known, known_places, known_cells,
                      topics, cells, queues, intervals, units, unit_times, entries, starts,
                      begins, delays, heads, bad, lost, extra)
    rmqctl_leave()
    return why


def sound(const uint8_t[::1] data, int64_t base, int64_t end, int what, int64_t[::1] state,
          const uint8_t[::1] names, const int64_t[::1] name_ends,
          const uint8_t[::1] known, const int64_t[:, ::1] known_places,
          const int32_t[::1] known_cells, const int64_t[:, ::1] topics,
          const int32_t[::1] cells, int64_t[:, ::1] queues, int64_t[:, ::1] intervals,
          const uint8_t[::1] units, const int64_t[::1] unit_times,
          const uint8_t[::1] entries, const int64_t[::1] starts, const int64_t[::1] begins,
          const int64_t[::1] delays, int64_t[:, ::1] heads, int64_t[:, ::1] bad,
          int64_t[:, ::1] lost, int64_t[:, ::1] extra, bint mapped):
    """Skip records from the state's ``at`` on that are sound and whose consume queue entries and
    index entries exist and agree with them. The records start before ``end``.

    ``base`` is the physical offset of data[0]; all other places are positions in data. ``what`` has
    a bit for each structure with which the records are compared. ``state`` (named by `SOUND_STATE`)
    is updated. ``names`` are the names of properties, back to back. ``known`` and the next
    arguments are the tables of a `TextTable`, whose numbers are those of ``topics`` (hash of
    ``topic#``, first of its ``cells``, number of cells, kind); a cell has the number of the queue
    with its id, or -1. ``queues``: queue offset of the first available unit, number of units, their
    position in ``units``, and the run before the queue's last message, which is moved to
    ``intervals`` when another run begins. ``entries`` are the index entries from the state's
    ``window`` on; file n has the entries from ``starts[n]`` on, with times relative to
    ``begins[n]`` (ms). ``delays`` are milliseconds by level. ``heads`` receives the first two and
    the last two records of a run. A record in which only the body does not match its CRC is added
    to ``bad`` (offset, size, topic, queue id, queue offset, length of the body, flag) and is not
    counted elsewhere. ``lost`` are damaged records, ascending (position, length, whether it was
    skipped), which are skipped. Index entries that point before the next message are added to
    ``extra`` (physical offset, hash, number). ``mapped``: ``data`` is a mapping of a file. Returns
    the reason why the function stopped; if that is "unreadable", a page of the mapping cannot be
    read, and what the arrays contain has no meaning.
    """
    cdef int64_t size = data.shape[0], at = state[S_AT], file = state[S_FILE]
    cdef int64_t files = begins.shape[0], extras = state[S_EXTRA]
    cdef int64_t unit_count = units.shape[0] // UNIT_SIZE
    cdef bint timed = (what & TIMED_ROWS) != 0
    cdef Name name[NAMES]
    cdef int why

    # The shapes of all that is reached through a pointer.
    if (state.shape[0] != S_CELLS or heads.shape[0] != 4
            or heads.shape[1] != HEAD_CELLS or topics.shape[1] != T_CELLS
            or queues.shape[1] != Q_CELLS or intervals.shape[1] != INTERVAL_CELLS
            or bad.shape[1] != BAD_CELLS or known_places.shape[0] != 2
            or lost.shape[1] != LOST_CELLS or extra.shape[1] != EXTRA_CELLS or extras < 0
            or known_cells.shape[0] & (known_cells.shape[0] - 1) or starts.shape[0] != files + 1
            or not 0 <= at <= size or not 0 <= file <= files or (
                timed and unit_times.shape[0] < unit_count)):
        raise ValueError("arrays have another shape")
    take_names(names, name_ends, name)

    # A stop is soon followed by the next one while queues are new: the other threads do not get the
    # lock of the interpreter for that.
    if mapped:
        begin_guard()
    try:
        why = caught_until(data, name, base, min(end, at + NEAR), what, state, known, known_places,
                           known_cells, topics, cells, queues, intervals, units, unit_times,
                           entries, starts, begins, delays, heads, bad, lost, extra, mapped)
        if why == AT_END and state[S_AT] < end:
            with nogil:
                why = caught_until(data, name, base, end, what, state, known, known_places,
                                   known_cells, topics, cells, queues, intervals, units,
                                   unit_times, entries, starts, begins, delays, heads, bad, lost,
                                   extra, mapped)
    finally:
        if mapped:
            end_guard()
    return why


cdef enum:  # columns that `lead` fills, and cells of its state
    L_TOPIC, L_QUEUE, L_OFFSET, L_PHYSICAL, L_SIZE, L_TIME, L_TAGS, LEAD_COLUMNS

cdef enum:
    P_AT, P_MESSAGES, P_KEYS, P_ASKED, P_ASKED_1, P_CELLS

LEAD_STATE = ("at", "messages", "keys", "asked", "asked_1")
LEAD_COLUMN = ("topic", "queue_id", "queue_offset", "physical", "size", "store_timestamp", "tags")


cdef int lead_until(const uint8_t[::1] data, const Name *name, int64_t base, int64_t end,
                    bint keyed, int64_t[::1] state, const uint8_t[::1] known,
                    const int64_t[:, ::1] known_places, const int32_t[::1] known_cells,
                    const int64_t[:, ::1] topics, const int64_t[::1] delays,
                    int64_t[:, ::1] columns, uint8_t[::1] rowed,
                    int64_t[:, ::1] keys) except -1 nogil:
    """Compute the entries of records that start before ``end``, as `lead` says."""
    cdef int64_t size = data.shape[0], at = state[P_AT], ahead = at
    cdef const uint8_t *first = &data[0] if size else NULL
    cdef const uint8_t *record
    cdef const uint8_t *part
    cdef const uint8_t *part_end
    cdef const uint8_t *key
    cdef const uint8_t *key_end
    cdef const uint8_t *mark
    cdef Message seen
    cdef int64_t messages = state[P_MESSAGES], count = state[P_KEYS], next_count
    cdef int64_t room = columns.shape[1], key_room = keys.shape[1], unique_size, when, code
    cdef int64_t *column = &columns[0, 0] if columns.shape[0] and room else NULL
    cdef uint32_t hashed, key_hash
    cdef int32_t flag, topic
    cdef int transaction, why = AT_END
    cdef bint good
    while at < end:
        while ahead < min(at + SOON, size):
            rmqctl_soon_read(first + ahead)
            ahead += LINE
        why = NOT_SOUND
        if not look(first, size, at, base, name, &seen) or not seen.intact:
            break
        record = first + at
        flag = read_i32(record + SYS_FLAG_AT)
        transaction = flag & TRANSACTION_MASK
        when = read_i64(record + BORN_HOST_AT + ADDRESS_SIZE + 4 + (
            BORN_HOST_V6_MORE if flag & BORN_HOST_V6 else 0))
        why = NEW_TOPIC
        topic = topic_of(first + seen.found.topic_start, seen.found.topic_length, known,
                         known_places, known_cells)
        if topic < 0:
            state[P_ASKED] = seen.found.topic_start
            state[P_ASKED_1] = seen.found.topic_length
            break
        why = NOT_SOUND
        if topics[topic, T_KIND] == T_OTHER or not code_of(
                &seen, topics[topic, T_KIND] == T_SCHEDULE, when, delays, &code):
            break
        why = NO_ROOM
        if messages >= room:
            break

        # Keys of index entries: the unique key as a whole, the others between spaces.
        next_count, good = count, True
        if keyed and transaction != TRANSACTION_ROLLBACK:
            hashed, unique_size = <uint32_t>topics[topic, T_SHARP], seen.unique_size
            key, key_end = seen.keys, seen.keys + seen.keys_size
            while unique_size or key < key_end:
                if unique_size:
                    part, part_end, unique_size = seen.unique, seen.unique + unique_size, 0
                else:
                    part = key
                    mark = <const uint8_t *>memchr(key, SPACE, <size_t>(key_end - key))
                    part_end = mark if mark != NULL else key_end
                    key = part_end + 1
                    if part == part_end:
                        continue
                good = next_count < key_room
                if not good:
                    break
                why = NOT_SOUND
                good = hash_of(hashed, part, part_end - part, seen.sealed, &key_hash)
                if not good:
                    break
                why = NO_ROOM
                keys[0, next_count], keys[1, next_count] = messages, absolute(key_hash)
                next_count += 1
            if not good:
                break

        # Below the room that was tested, column by column.
        count = next_count
        column[L_TOPIC * room + messages] = topic
        column[L_QUEUE * room + messages] = read_i32(record + QUEUE_ID_AT)
        column[L_OFFSET * room + messages] = read_i64(record + QUEUE_OFFSET_AT)
        column[L_PHYSICAL * room + messages] = base + at
        column[L_SIZE * room + messages] = seen.found.total_size
        column[L_TIME * room + messages] = when
        column[L_TAGS * room + messages] = code
        rowed[messages] = not transaction & TRANSACTION_PREPARED
        messages += 1
        at += seen.found.total_size
        why = AT_END
    state[P_AT], state[P_MESSAGES], state[P_KEYS] = at, messages, count
    return why


cdef int caught_lead(const uint8_t[::1] data, const Name *name, int64_t base, int64_t end,
                     bint keyed, int64_t[::1] state, const uint8_t[::1] known,
                     const int64_t[:, ::1] known_places, const int32_t[::1] known_cells,
                     const int64_t[:, ::1] topics, const int64_t[::1] delays,
                     int64_t[:, ::1] columns, uint8_t[::1] rowed, int64_t[:, ::1] keys,
                     bint mapped) except -1 nogil:
    """Compute entries as `lead_until`; in a mapping, return UNREADABLE if a page of it cannot be
    read. The state is then that before the call.
    """
    cdef sigjmp_buf here
    cdef int why
    if not mapped:
        return lead_until(data, name, base, end, keyed, state, known, known_places, known_cells,
                          topics, delays, columns, rowed, keys)
    if rmqctl_enter(&here):
        rmqctl_leave()
        return UNREADABLE
    why = lead_until(data, name, base, end, keyed, state, known, known_places, known_cells,
                     topics, delays, columns, rowed, keys)
    rmqctl_leave()
    return why


def lead(const uint8_t[::1] data, int64_t base, int64_t end, bint keyed, int64_t[::1] state,
         const uint8_t[::1] names, const int64_t[::1] name_ends,
         const uint8_t[::1] known, const int64_t[:, ::1] known_places,
         const int32_t[::1] known_cells, const int64_t[:, ::1] topics,
         const int64_t[::1] delays, int64_t[:, ::1] columns, uint8_t[::1] rowed,
         int64_t[:, ::1] keys, bint mapped):
    """Compute the entries of records from the state's ``at`` on, while these are intact and plain.

    Arguments as in `sound`. ``columns`` (int64, named by `LEAD_COLUMN`) and ``rowed`` (whether it
    has a consume queue entry) receive each message, ``keys`` (int64 [2, n]) message and hash of
    each index entry, in index order, if these are wanted. Returns the reason why the function
    stopped; if that is "unreadable", nothing was added.
    """
    cdef int64_t size = data.shape[0], at = state[P_AT], room = columns.shape[1]
    cdef Name name[NAMES]
    cdef int why
    if (state.shape[0] != P_CELLS or topics.shape[1] != T_CELLS or known_places.shape[0] != 2
            or known_cells.shape[0] & (known_cells.shape[0] - 1) or not 0 <= at <= size
            or columns.shape[0] != LEAD_COLUMNS or rowed.shape[0] < room or keys.shape[0] != 2
            or state[P_MESSAGES] < 0 or state[P_KEYS] < 0):
        raise ValueError("arrays have another shape")
    take_names(names, name_ends, name)
    if mapped:
        begin_guard()
    try:
        with nogil:
            why = caught_lead(data, name, base, end, keyed, state, known, known_places,
                              known_cells, topics, delays, columns, rowed, keys, mapped)
    finally:
        if mapped:
            end_guard()
    return why
