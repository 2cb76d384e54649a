"""Decide where a damaged record ends, and where the log continues after it.

A *frame* is a sequence of bytes that reads as an intact record, with the right physical offset, CRC
and queue offset. A sender can put frames into a message body. So a frame after damage is either a
record of the log or a part of the damaged record's body. But a sender cannot change the record
around the body, and cannot create consume queue entries or index entries for frames in the body.
So four cases are distinguished, from the strongest proof to none:

1. A consume queue entry points to the damaged record. The size in the entry equals the record's
   size field, or the size calculated from the record's length fields. No frame inside is a record
   of the log.
2. Only one field of the record is wrong, and the body matches its CRC. No frame inside is a record
   of the log.
3. The size is known but not proven: only one of the sizes in 1 is known, or the body is damaged or
   torn. But a record, a blank record or unused space begins where the damaged record would end.
   Then a frame inside with a consume queue or index entry of its own is a record of the log,
   written over a torn record. All other frames belong to the body.
4. The size is unknown. A frame is a record of the log if it has a consume queue or index entry. So
   is a frame after the last possible end of the damaged record (`rmqctl.scan.damage.ends`). All
   other frames are undecided, unless their own queue contradicts them.

An exception to 4 is a file that belongs to no store and is not scanned by itself. There, the log
continues at the first frame after the end that the damaged record states. If consecutive frames
extend over that end, they were written over a torn record, and the log continues at the first of
them.
"""

from __future__ import annotations

from bisect import bisect_left

from isal.isal_zlib import crc32

from rmqctl.formats import layout
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    CRC_MASK,
    HOST_BITS,
    MIN_SIZE,
    PROPERTIES_LENGTH_SIZE,
    START_SIZE,
    VERSIONS,
    Message,
    decode,
    is_magic,
    variant,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.damage import entries
from rmqctl.scan.damage.ends import MIN_HEAD, resumed
from rmqctl.scan.damage.references import References
from rmqctl.scan.damage.slots import EarlierMessages
from rmqctl.scan.damage.tails import MAX_TAIL, ends_record, tails_of
from rmqctl.scan.frames import Doubtful, used_length
from rmqctl.scan.resync import (
    MAX_RECORD,
    bare_records,
    extent,
    first_placed,
    is_blank,
    is_placed,
    located_size,
    next_provable,
    provable,
    used_windows,
)
from rmqctl.scan.source import Source

_MAX_BODY = 32 << 20
"""Maximum number of body bytes whose CRC is checked to prove a size."""
_UNUSED = 64 << 10
"""Number of zeros expected after the last record of a file. A body rarely contains this number of
consecutive zeros.
"""
_STEP = 1 << 20
"""Number of bytes of consecutive damaged records that are examined at once."""
_HOSTS = tuple(bits for bits in (sysflag.BORN_HOST_V6, sysflag.STORE_HOST_V6, HOST_BITS))
_START = layout.reader(Message, "total_size", "magic", "body_crc", "physical_offset", "sys_flag")


@dataclass(frozen=True, slots=True)
class Resumption:
    """Verdict on bytes without a record.

    ``resume``: the position where the log continues; None if nothing provable follows.
    ``located``: whether the bytes up to ``resume`` are one damaged record.
    ``doubtful``: frames before ``resume`` that may be records of the log.
    """

    resume: int | None
    located: bool = False
    doubtful: Doubtful = ()


@dataclass(frozen=True, slots=True)
class Extent:
    """End of a damaged record (a position).

    ``firm``: whether no other record can be inside.
    ``proven``: whether several facts confirm the end.
    ``by_row``: whether the record's consume queue entry is one of these facts.
    """

    end: int
    firm: bool
    proven: bool = True
    by_row: bool = False


def judge(source: Source, at: int, search: int, passed: EarlierMessages) -> Resumption:
    """Return the verdict on the bytes at ``at``, where a record was expected but not found.

    No record begins before ``search``; ``passed``: the preceding messages. Raises: StoreIOError.
    """
    references = References(source)
    own = own_extent(source, at, references)
    if own is None:
        return _searched(source, at, search, source.size, references, passed)
    if own.by_row:
        return _behind_rows(source, at, own, references, passed)
    if own.firm:
        return Resumption(own.end, located=True)
    if own.proven:
        inside = references.first(search, own.end)
        # A record of another place shows nothing of this one: an entry may point into its bytes.
        begun = None if is_placed(source, at) else references.begins(at + 1, own.end)
        if begun is not None and (inside is None or begun < inside):
            return Resumption(begun)
        return Resumption(own.end if inside is None else inside, located=inside is None)
    # It is torn, or its body was hit: inside, only what is proven to be of the log.
    if source.witness is None:
        return Resumption(own.end, located=True)
    inside = references.first(search, own.end)
    less = _says_less(source, at, own.end)
    end = own.end if less is None else less
    verdict = _searched(source, at, search, end, references, passed)
    if inside is not None:
        return verdict
    # Its size may be right, and the length of its body what was hit: or the other way round, where
    # frames are after the body.
    magic = _START.unpack_from(source.read(at, START_SIZE))[1]
    body = source.base + at + max(_least_size(source, at, version) for version in (
        (magic,) if is_magic(magic) else VERSIONS))
    return Resumption(end, located=True, doubtful=verdict.doubtful if less is not None or any(
        place >= body for place, _ in verdict.doubtful) else ())


def _says_less(source: Source, at: int, end: int) -> int | None:
    """Return the first record boundary at or after ``end``. The records are followed from the end
    that results from the damaged record's own size field.

    If these records stop before ``end``, return ``end``. Return None if no record begins where the
    damaged record would end, or if it would end at or after ``end``.
    """
    total = _START.unpack_from(source.read(at, START_SIZE))[0]
    if not MIN_SIZE <= total < end - at or not is_placed(source, at + total):
        return None
    place = at + int(total)
    while place < end and (size := located_size(source, place)) is not None:
        place += size
    return max(place, end)


def _behind_rows(source: Source, at: int, own: Extent, references: References,
                 passed: EarlierMessages) -> Resumption:
    """Return the verdict on a damaged record to which a consume queue entry points. The verdict
    also covers the following damaged records that have entries.
    """
    inside = None if own.firm else references.first(at + 1, own.end)
    if inside is not None:
        return Resumption(inside)
    end = own.end
    is_whole = own.firm and any(source.read(end - START_SIZE, START_SIZE))  # not torn
    if end < source.size and (provable(source, end) or (
            (is_whole or is_placed(source, at)) and not any(source.read(end, START_SIZE)))):
        return Resumption(end, located=own.firm)
    while end < source.size and located_size(source, end) is None:
        # Skip many at once: a whole file may be damaged.
        chain = references.chain(end, _STEP)
        if len(chain) > 1 and (skipped := min(first_placed(source, chain), len(chain) - 1)) > 0:
            end = int(chain[skipped])
            continue
        sizes = [size for size in references.sizes(end) if size > 0]
        if not sizes:
            break
        if end + max(sizes) > source.size:
            # It is torn, or its row is damaged: what is after counts if more than itself says so.
            return Resumption(references.first(end, source.size))
        end += max(sizes)
    if end < source.size and provable(source, end):
        return Resumption(end)
    return _searched(source, at, end, source.size, references, passed)


def _searched(source: Source, at: int, search: int, limit: int, references: References,
              passed: EarlierMessages) -> Resumption:
    """Return a verdict with the first record of the log in positions ``[search, limit)``, and the
    undecided frames before it.
    """
    if source.witness is None and not passed.by_itself:
        return _claimed(source, at, search, limit)
    stop = references.first(search, limit)
    if stop is None and limit < source.size:
        stop = limit
    first = next_provable(source, search, limit if stop is None else stop)
    if first is not None and first - at < MIN_HEAD and not is_blank(source, first) and (
            at != passed.moved_end or is_placed(source, at)):
        return Resumption(first)  # no body begins so near to where a record does
    if first is None:
        bare = _with_bare(source, search, limit if stop is None else stop, ())
        return Resumption(stop, doubtful=tuple(
            frame for frame in bare if not references.denies(frame[0] - source.base, frame[1])))
    resumption = resumed(source, at, first, stop, passed,
                    lambda place: _proven_end(source, place, references))
    upto = limit if resumption.resume is None else resumption.resume
    frames = _with_bare(source, search, upto, resumption.undecided)
    return Resumption(resumption.resume, doubtful=tuple(
        frame for frame in frames if not references.denies(frame[0] - source.base, frame[1])))


def _with_bare(source: Source, start: int, end: int, frames: Doubtful) -> Doubtful:
    """Return the undecided frames in positions ``[start, end)``, plus the records between them
    that have no body.
    """
    taken = sorted(frames)
    for position, size in bare_records(source, start, end):
        place = source.base + position
        number = bisect_left(taken, (place, 0))
        if (number == 0 or sum(taken[number - 1]) <= place) and (
                number == len(taken) or place + size <= taken[number][0]):
            taken.insert(number, (place, size))
    return tuple(taken)


def _claimed(source: Source, at: int, search: int, limit: int) -> Resumption:
    """Return the verdict of `_searched` for a file without a store: the damaged record's own size
    decides.
    """
    claimed = at if source.head else claimed_end(source, at)
    doubtful: list[tuple[int, int]] = []
    position = search
    while (candidate := next_provable(source, position, limit)) is not None:
        frames, reaches_over = _frames_up_to(source, candidate, claimed)
        if candidate >= claimed or reaches_over or (
                candidate - at < MIN_HEAD and not is_blank(source, candidate)):
            return Resumption(candidate, doubtful=tuple(doubtful))
        doubtful += [(source.base + place, size) for place, size in frames]
        position = max([candidate + 1, *(place + size for place, size in frames)])
    return Resumption(None, doubtful=tuple(doubtful))


def closes(source: Source, at: int, passed: EarlierMessages) -> bool:
    """Return whether the blank at a position closes its file. Raises: StoreIOError.

    In a single file without a store, a blank after damage may be part of a body. All other blanks
    close their files.
    """
    if not (passed.by_itself and passed.is_damaged):
        return True
    if next_provable(source, at + 1, source.size) is not None:
        return False
    # After a blank in a body the record continues, to its topic and properties.
    used = at
    for position, data in used_windows(source, at + BLANK_SIZE, source.size):
        used = position + used_length(data)
    before = max(at, used - MAX_TAIL)
    tail = source.read(before, used - before)
    return not any(ends_record(tail + bytes(zeros)) for zeros in range(PROPERTIES_LENGTH_SIZE + 1))


def _frames_up_to(source: Source, at: int, end: int) -> tuple[list[tuple[int, int]], bool]:
    """Return (position and size of the consecutive frames from ``at`` up to ``end``; whether an
    intact record extends past ``end``). No record inside a body extends past the body's end.
    """
    frames: list[tuple[int, int]] = []
    while at < end and (size := located_size(source, at)) is not None:
        if at + size > end:
            record = decode(source.read(at, size))
            return frames, bool(record.body) and record.crc_ok
        frames.append((at, size))
        at += size
    return frames, False


def claimed_end(source: Source, at: int, *, strict: bool = False) -> int:
    """Return the end (a position) of a damaged record according to its own size or lengths, which
    may be wrong. Return ``at`` if they are impossible.

    ``strict``: the record's offset must also be right, and its size must agree with its body
    length. Raises: StoreIOError.
    """
    head = source.read(at, START_SIZE)
    if len(head) < START_SIZE:
        return at
    total, magic, _, physical, _ = _START.unpack_from(head)
    is_there = bool(physical == source.base + at)
    version = magic if is_magic(magic) else next(iter(VERSIONS))
    summed = extent(source, at, version) if is_there or is_magic(magic) else None
    if not MIN_SIZE <= total <= MAX_RECORD or not (is_there or is_magic(magic)):
        # Its size cannot be; its lengths still point to something.
        return at + summed if (summed is not None and is_there and is_magic(magic)
                               and is_placed(source, at + summed)) else at
    start, length = _body(source, at, version)
    if summed is not None and summed != total and is_placed(source, at + summed) and (
            not is_placed(source, at + total)):
        return at + int(summed)
    # After the body there is no more than a topic and properties.
    if strict and not (is_there and 0 <= length < total - start <= length + MAX_TAIL):
        return at
    return min(at + int(total), source.size)


def _lengths_end(source: Source, at: int) -> int | None:
    """Return the end of a record whose header is lost, except for the body length. The end follows
    from the record's lengths, and counts only if another record begins there. Raises: StoreIOError.

    The record is assumed to have short addresses, which determines the position of the body length.
    The position for long addresses is not tried: it may be inside the body, where a sender could
    forge a length.
    """
    return next((at + size for version in VERSIONS
                 if (size := _summed(source, at, version, 0))), None)


def _summed(source: Source, at: int, version: int, bits: int) -> int | None:
    """Return the size of a record calculated from its lengths. Return None if no other record
    begins right after it, or if its topic is not valid.
    """
    shape = variant(bits, version)
    head = source.read(at, shape.head_size)
    if len(head) < shape.head_size:
        return None
    length = shape.head.unpack(head)[-1]
    size = extent(source, at, version, bits) if length > 0 else None
    return size if size is not None and is_placed(source, at + size) and _has_topic(
        source, at + shape.head_size + length, version) else None


def _proven_end(source: Source, at: int, references: References) -> int | None:
    own = own_extent(source, at, references)
    return own.end if own is not None and own.proven else None


# -- the damaged record's own extent --------------------------------------------------------------


def own_extent(source: Source, at: int, references: References) -> Extent | None:
    """Return the end of the damaged record at a position, if its fields or its consume queue entry
    prove it. Raises: StoreIOError.
    """
    own = _told_extent(source, at, references)
    return None if own is not None and not own.by_row and _is_overrun(
        source, at, own.end, references) else own


def _is_overrun(source: Source, at: int, end: int, references: References) -> bool:
    """Return whether other records refute the supposed end of a record: no record begins at that
    end, and a record that begins inside the supposed record extends beyond it.
    """
    place = None if _is_begun(source, end, references) else next_provable(source, at + 1, end)
    while place is not None and place < end:
        behind = place + (located_size(source, place) or source.size)
        if behind > end:
            return behind <= source.size and _is_begun(source, behind, references)
        place = behind if provable(source, behind) else next_provable(source, behind, end)
    return False


def _told_extent(source: Source, at: int, references: References) -> Extent | None:
    if source.head:
        return _entry_extent(source, at, references)
    room = source.size - at
    head = source.read(at, START_SIZE)
    if len(head) < START_SIZE:
        return None
    total, magic, _, physical, sys_flag = _START.unpack_from(head)
    rows = {size for size in references.sizes(at) if MIN_SIZE <= size <= room}
    versions = (magic,) if is_magic(magic) else tuple(VERSIONS)
    sums = {size for version in versions
            if (size := extent(source, at, version)) is not None and size >= MIN_SIZE}
    is_sized = MIN_SIZE <= total <= min(MAX_RECORD, room)
    # Its row, and what the record itself says.
    claimed = sums | ({total} if is_sized else set())
    agreed = rows & claimed
    if agreed:
        return Extent(at + max(agreed), firm=True, by_row=True)
    is_there = bool(physical == source.base + at)
    if is_sized and (total in sums or any(
            extent(source, at, version, sys_flag & HOST_BITS ^ bits) == total
            for version in versions for bits in _HOSTS)):
        return Extent(at + total, firm=is_there)
    if not is_there and not is_magic(magic):
        if rows:
            return Extent(at + max(rows), firm=False, by_row=True)
        end = _lengths_end(source, at)
        return None if end is None else Extent(end, firm=False)
    # Its size is lost, and its lengths point to another record.
    if not rows and not is_sized:
        lands = {size for version in versions for bits in (0, *_HOSTS)
                 if (size := _summed(source, at, version, sys_flag & HOST_BITS ^ bits))}
        if len(lands) == 1:
            return Extent(at + lands.pop(), firm=False)
    # One field is wrong, the body is complete: its size, or one of its lengths.
    ends = set()
    for version in versions:
        ends |= _whole(source, at, version, total if is_sized else None)
    landed = _landing(source, at, ends | rows, references)
    if len(ends) > 1 and not any(_is_begun(source, at + size, references) for size in landed):
        # Zeros show nothing where another size would do as well: they may be in a body.
        landed = {size for size in landed if not any(source.read(at + size, _UNUSED))}
    ends = landed or (ends if is_magic(magic) else set())
    if rows & ends:
        return Extent(at + max(rows & ends), firm=len(ends & claimed) == len(ends))
    if ends:
        # Where none points anywhere the least will do: after the body is text, without frames.
        end = max(landed) if landed else min(ends)
        return Extent(at + end, firm=is_there and len(ends) == 1)
    if rows:
        return Extent(at + max(rows), firm=False, by_row=True)
    # Torn, or its body was hit: what its size and the length of its body say.
    claims, bodies = set(), set()
    for version in versions:
        least = _least_size(source, at, version)
        if least:
            bodies.add(least)
            claims |= {size for size in (total, least) if max(least, MIN_SIZE) <= size <= room}
    landed = _landing(source, at, {max(claims)}, references) if claims else set()
    if not is_there:  # it may be of another place, and end with its page: only a record tells
        landed = {size for size in landed if is_placed(source, at + size)}
    if claims and not landed and is_there:
        landed = {size for size in bodies & claims if _is_torn_tail(source, at + size)}
    return Extent(at + max(landed), firm=False, proven=False) if landed else None


def _entry_extent(source: Source, at: int, references: References) -> Extent | None:
    """Return the end of a damaged DLedger entry; None if nothing proves it. Each of these is a
    proof:

    * the entry's header;
    * two agreeing fields of the entry and its record;
    * the entry's DLedger index unit, or the record's consume queue entry;
    * one field that points to another entry.
    """
    entry = entries.whole_entry(source, at)
    if entry is not None:
        return Extent(at + entry.size, firm=True)
    claims = entries.claimed_sizes(source, at)
    rows = set(references.sizes(at))
    agreed = [size for size, times in claims.items() if size in rows or (
        times > 1 and entries.is_proven(source, at, size))]
    if agreed:
        return Extent(at + max(agreed), firm=True, by_row=bool(rows & set(agreed)))
    rows = {size for size in rows if MIN_SIZE < size <= source.size - at}
    if rows:
        return Extent(at + max(rows), firm=False, by_row=True)
    landed = [size for size in claims if entries.is_proven(source, at, size)
              and provable(source, at + size)]
    return Extent(at + max(landed), firm=False, proven=False) if landed else None


def _body(source: Source, at: int, magic: int) -> tuple[int, int]:
    """Return (start of the record's body, body length in the header), both relative to ``at``."""
    head = source.read(at, START_SIZE)
    shape = variant(_START.unpack_from(head)[-1] & HOST_BITS, magic)
    head = source.read(at, shape.head_size)
    return shape.head_size, (shape.head.unpack(head)[-1]
                             if len(head) == shape.head_size else -1)


def _least_size(source: Source, at: int, magic: int) -> int:
    """Return the smallest size of a record with the body length in its header; 0 if this length is
    invalid.
    """
    start, length = _body(source, at, magic)
    return start + length if 0 <= length <= source.size - at - start else 0


def _whole(source: Source, at: int, magic: int, total: int | None) -> set[int]:
    """Return the possible sizes of a record in which only one field is wrong. With each of these
    sizes, the record is complete, and its body matches its CRC.

    ``total``: the size stored in the record; None if this size is impossible.
    """
    crc = _START.unpack_from(source.read(at, START_SIZE))[2]
    start, length = _body(source, at, magic)
    room = source.size - at
    if 0 < length <= min(_MAX_BODY, room - start) and _crc(
            source.read(at + start, length)) == crc:
        # The body is as long as it says: its size is wrong, or one of the lengths after it.
        size = extent(source, at, magic)
        sizes = {size} if size is not None and _has_topic(
            source, at + start + length, magic) else set()
        if total is not None and start + length + 3 < total <= (
                start + length + MAX_TAIL):
            sizes.add(total)
        return sizes
    if total is None or total > _MAX_BODY:
        return set()
    # The length of the body is wrong: it ends before a topic and properties that end with all.
    first = max(start - 1, total - MAX_TAIL)  # a topic is searched for after a byte at least
    tail = source.read(at + first, total - first)
    width = variant(0, magic).topic_length.size
    for place in sorted(tails_of(tail)):
        end = first + place - width
        if end >= start and _crc(source.read(at + start, end - start)) == crc:
            return {total}
    return set()


def _has_topic(source: Source, at: int, magic: int) -> bool:
    """Return whether a topic, preceded by its length, is at a position, as in every record."""
    width = variant(0, magic).topic_length.size
    length = int.from_bytes(source.read(at, width), "big")
    topic = source.read(at + width, min(length, 1 << 10))
    return length > 0 and all(32 < byte < 127 for byte in topic)


def _is_torn_tail(source: Source, at: int) -> bool:
    """Return whether the first bytes of a topic and properties are at a position, followed by
    zeros.
    """
    raw = source.read(at, MAX_TAIL + START_SIZE)
    end = raw.find(bytes(START_SIZE))
    if end <= 0:
        return False
    topic = raw[1:min(1 + raw[0], end)]
    return bool(topic) and all(32 < byte < 127 for byte in topic)


def _crc(body: bytes) -> int:
    return crc32(body) & CRC_MASK


def _landing(source: Source, at: int, sizes: set[int], references: References) -> set[int]:
    """Return the sizes after which a record or a blank begins. If there are none, return the sizes
    after which unused space begins.
    """
    return {size for size in sizes if _is_begun(source, at + size, references)} or {
        size for size in sizes if not any(source.read(at + size, START_SIZE))}


def _is_begun(source: Source, at: int, references: References) -> bool:
    """Return whether a record or a blank begins at a position."""
    return provable(source, at) or is_placed(source, at) or bool(references.sizes(at))
