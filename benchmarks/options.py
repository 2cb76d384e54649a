"""Options of a generated store: profile, sizes, seed."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.layout import GIB

MIN_BODY_LENGTH = 64
MAX_NUMBER = 256  # topics and queues are counted in one byte while a store is planned


@dataclass(frozen=True)
class Profile:
    """Shape of a generated store: mean body length (bytes, varied by 10 %) and length of the log
    (bytes).
    """

    body_length: int
    log_size: int


PROFILES = {"1k": Profile(1024, GIB), "100": Profile(100, GIB // 2), "8k": Profile(8192, GIB // 2)}


@dataclass(frozen=True)
class Options:
    """All values that determine a store's bytes. Sizes in bytes.

    ``log_size``: records are added while their end is at most this offset; blank records count.
    ``adversarial``: share of records whose body imitates records, magics or blank records.
    """

    body_length: int
    log_size: int
    seed: int = 1
    topics: int = 8
    queues: int = 4
    adversarial: float = 0.01
    commitlog_file_size: int = GIB
    consumequeue_file_size: int = 6_000_000
    index_slots: int = 5_000_000
    index_max: int = 20_000_000

    def __post_init__(self) -> None:
        if self.body_length < MIN_BODY_LENGTH:
            raise ValueError(f"bodies of {self.body_length} bytes cannot imitate anything")
        if not 1 <= self.topics <= MAX_NUMBER or not 1 <= self.queues <= MAX_NUMBER:
            raise ValueError(f"topics and queues lie between 1 and {MAX_NUMBER}")


TOPIC_NAMES = (
    "TopicTest",
    "order_events",
    "payment-settled",
    "%RETRY%billing",
    "inventory_change_log",
    "user_login",
    "audit",
    "search-index-updates_v2",
)


def topic_names(count: int) -> list[str]:
    """Return topic names: first realistic names of different lengths, then numbered names."""
    extra = [f"bench_topic_{number}" for number in range(len(TOPIC_NAMES), count)]
    return [*TOPIC_NAMES[:count], *extra]
