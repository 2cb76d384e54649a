"""What verify says does not depend on how many threads looked, nor where the log was cut."""

from __future__ import annotations

import pytest

from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.store.store import Store
from tests.support import damage

ROOTS = ("5.3.3/basic/store", "5.3.3/crash-crc/before", "4.9.3/crash-cqahead/before",
         "4.9.3/transaction/store")


def judged(root, **options):
    with Store.open(root) as store:
        run = Verification(store, VerifyOptions(**options))
        return [one.as_dict() for one in run.findings()], run.coverage.as_dict(), run.ok


@pytest.mark.parametrize("size", [777, 5_003, 40_000])
@pytest.mark.parametrize("name", ROOTS)
def test_golden_stores(name, size, golden):
    assert judged(golden(name), jobs=2, minimum_range=size) == judged(golden(name))


@pytest.mark.parametrize("size", [777, 5_003, 40_000])
def test_a_damaged_store(size, golden_copy):
    root = golden_copy("5.3.3/basic/store")
    damage.flip_bit(root, "commitlog/00000000000000065536", 40301, 0)
    damage.zero_page(root, "commitlog/00000000000000131072", 5)
    damage.flip_bit(root, "commitlog/00000000000000000000", 48092, 0)
    whole = judged(root)
    assert not whole[2]
    assert judged(root, jobs=2, minimum_range=size) == whole
