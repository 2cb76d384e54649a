"""Where a broker ends a damaged log: every command that says it says the same.

Random damages of golden stores, for both versions, after a clean and an unclean end. What cannot
be compared is left out: a store on which the broker does not start, an append that is refused.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rmqctl.broker.recovery import recover_log
from rmqctl.broker.settings import resolve
from rmqctl.broker.versions import VERSIONS, BrokerVersion
from rmqctl.broker.view import broker_view
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.engine.input.append_stream import DryRunEngine
from rmqctl.errors import RefusedError
from rmqctl.parse_values import now_ms
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.repair import damage
from tests.support import cli
from tests.support.share import every

STORES = [f"{version}/{kind}" for version in VERSIONS
          for kind in ("delay", "basic", "batch", "transaction", "ipv6")] + ["5.3.3/v2topic"]
KINDS = tuple(kind for kind in damage.KINDS if kind != "truncated file")
SEEDS = range(44)
PARTS = 2
KINDS_OF_END = ("as it was", "unclean", "unclean, checkpoint lost")


def damaged(root: Path, seed: int) -> str:
    """Damages the log of a store and maybe how it ended; says how."""
    luck = random.Random(seed)
    damages = damage.do(root, seed, KINDS, luck.randint(1, 3))
    ended = luck.choice(KINDS_OF_END)
    if ended != "as it was":
        (root / "abort").touch()
    if ended == "unclean, checkpoint lost":
        (root / "checkpoint").unlink(missing_ok=True)
    return f"{damages}, {ended}"


def ends(root: Path, version: BrokerVersion) -> dict[str, int]:
    """Where each of them ends the log (physical offset); empty where the broker does not start."""
    with Store.open(root) as store:
        prediction = preflight(store, version.name)
        if not prediction.starts or prediction.log.truncate_to is None:
            return {}
        ends_by_view = {"preflight": prediction.log.truncate_to,
                        "recovery": recover_log(store, version).end,
                        "view": broker_view(store, version).log_end or 0}
    plan = cli.run("recover", root, "--strategy", "broker", "--broker-version", version.name,
                   "-o", "json", "--dry-run").expect(0, 1).json()
    ends_by_view["recover --strategy broker"] = plan["truncate_to"]
    with Store.open(root) as store:
        settings = resolve(store, {"version": version.name}).settings
    try:
        with DryRunEngine.open(root, settings, clock=now_ms) as dry_run:
            ends_by_view["append --dry-run"] = dry_run.state.end
    except RefusedError:
        pass
    return ends_by_view


def places(root: Path, view: str) -> list[int]:
    """Where the messages are that `read` shows."""
    result = cli.run("read", root, "--view", view, "--body", "none", "-o", "jsonl").expect(0, 1, 3)
    return [row["physical_offset"] for row in result.jsonl()]


def shown(root: Path, log_end: int, expected_text: str) -> None:
    """`info`, `read` and `offsets` in a broker's view: it is the store's own version's."""
    info = cli.run("info", root, "--view", "broker", "-o", "json").expect(0, 3).json()
    assert info["max_phy_offset"] == log_end, expected_text
    assert places(root, "broker") == [place for place in places(root, "disk")
                                      if place < log_end], expected_text
    queues = {(topic["topic"], queue["queue_id"]): queue["max_offset"]
              for topic in info["topics"] for queue in topic["queues"]}
    lag = cli.run("offsets", root, "--view", "broker", "-o", "jsonl").expect(0, 1, 3).jsonl()
    for row in lag:
        key = row["topic"], row["queue_id"]
        assert row["max_offset"] == queues.get(key, row["max_offset"]), (expected_text, row)


def check(root: Path, expected_text: str) -> int:
    """How many statements were compared."""
    compared = 0
    for version in VERSIONS.values():
        store_ends = ends(root, version)
        assert len(set(store_ends.values())) <= 1, (expected_text, version.name, store_ends)
        compared += len(store_ends)
        with Store.open(root) as store:
            own = store.generation == version.generation
        if own and store_ends:
            shown(root, store_ends["preflight"], expected_text)
    return compared


@pytest.mark.parametrize("part", range(PARTS))
def test_every_command_ends_a_damaged_log_at_the_same_place(golden_copy: GoldenFolder,
                                                            part: int) -> None:
    compared = 0
    for seed in every(4, SEEDS[part::PARTS], f"damaged logs {part}"):
        root = golden_copy(f"{STORES[seed % len(STORES)]}/store")
        compared += check(root, f"seed {seed}: {damaged(root, seed)}")
    assert compared > len(SEEDS) // 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_seeds(golden_copy: GoldenFolder, seed: int) -> None:
    root = golden_copy(f"{STORES[seed % len(STORES)]}/store")
    check(root, f"seed {seed}: {damaged(root, seed)}")


def test_a_missing_file_does_not_end_the_log(golden_copy: GoldenFolder) -> None:
    """Spec: recovery.md §2, checkSelf only logs it; the log ends at the torn page beyond."""
    root = golden_copy("4.9.3/delay/store")
    (root / "commitlog" / f"{49152:020d}").unlink()
    file = root / "commitlog" / f"{73728:020d}"
    data = bytearray(file.read_bytes())
    data[18432:18432 + 2048] = bytes(2048)
    file.write_bytes(data)
    assert set(ends(root, VERSIONS["4.9.3"]).values()) == {91883}
    shown(root, 91883, "one file missing, one page torn")


def test_a_v2_record_ends_the_log_of_an_older_broker(golden: GoldenFolder) -> None:
    root = golden("5.3.3/v2topic/store")
    older, newer = (ends(root, version)["view"] for version in VERSIONS.values())
    assert older < newer
