"""``make fuzz SECONDS=300``: the random tests again and again, each round with a fresh seed.

Whatever reads bytes that a stranger sends or stores has a test here that makes them up. A round is
one subject with one seed, which is printed before it begins; the subjects follow each other until
the time is over, and each has its turn at least once. A round begins no test after its share of
the time. What fails is repeated with that seed:

    RMQCTL_SEED=N python -m pytest -p no:cacheprovider TESTS
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS: Mapping[str, Sequence[str]] = {
    "frames": (
        "tests/remoting/test_frames.py", "tests/remoting/test_headers.py",
        "tests/kernel/test_sends.py", "tests/kernel/test_repeats.py",
        "tests/serve/test_plain.py", "tests/serve/test_plain_pulls.py",
        "tests/serve/test_robust.py::test_any_request_with_any_fields_is_answered"),
    "grpc": ("tests/serve/test_grpc_fuzz.py",),
    "decoders": (
        "tests/formats/test_hessian.py", "tests/formats/test_trace.py",
        "tests/store/test_payloads.py", "tests/kernel/test_json.py", "tests/kernel/test_texts.py"),
    "formats": (
        "tests/formats/test_append_crc.py",
        "tests/formats/test_config_json.py",
        "tests/formats/test_dledger.py",
        "tests/formats/test_fixed_units.py",
        "tests/formats/test_index_file.py",
        "tests/formats/test_java_concurrent_map.py",
        "tests/formats/test_kinds.py",
        "tests/formats/test_message.py",
        "tests/formats/test_pages_and_texts.py",
        "tests/formats/test_properties_file.py",
        "tests/formats/test_queues.py",
        "tests/formats/test_texts_and_flags.py",
        "tests/formats/test_timer.py",
        "tests/kernel/test_rows.py"),
    "damaged stores": (
        "tests/badinput/test_damage.py", "tests/badinput/test_timer.py",
        "tests/badinput/test_wrong_kinds.py", "tests/adversary/test_undecided_random.py"),
    "rocksdb": ("tests/store/test_rocksdb.py",),
    "tier metadata": (
        "tests/formats/test_tiered_metadata.py", "tests/formats/test_tiered_index.py",
        "tests/formats/test_tiered_units.py", "tests/formats/test_tiered_names.py",
        "tests/adversary/test_forged_tier.py"),
}
_LEAST_S = 10.0
"""A round begins no test after its share of the time, and this at least."""


def rounds(seconds: float, first: int) -> int:
    """Runs subjects until the time is over; how many rounds failed."""
    seeds, end = random.Random(first), time.monotonic() + seconds
    share = max(_LEAST_S, seconds / len(SUBJECTS))
    done = failures = 0
    for name in cycle(SUBJECTS):
        if time.monotonic() > end and done >= len(SUBJECTS):
            break
        seed = seeds.randrange(1 << 31)
        print(f"{name}: seed {seed}", flush=True)
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                 f"--time-limit={share:g}", *SUBJECTS[name]]
        ended = subprocess.run(words, cwd=ROOT, env={**os.environ, "RMQCTL_SEED": str(seed)},
                               text=True, capture_output=True, check=False)
        done += 1
        if ended.returncode:
            failures += 1
            print(ended.stdout[-6000:], ended.stderr[-2000:], sep="\n")
            print(f"{name} failed; again: RMQCTL_SEED={seed} {' '.join(words[1:])}", flush=True)
    print(f"{done} rounds, {failures} failed; seed of the seeds {first}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=None, help="of the seeds; a fresh one without")
    given = parser.parse_args()
    first = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 31)
    return 1 if rounds(given.seconds, first) else 0


if __name__ == "__main__":
    sys.exit(main())
