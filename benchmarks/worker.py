"""Run a function of benchmarks.calls several times in this process and print the best pass.

python -m benchmarks.worker NAME STORE SCRATCH JOBS TIMES JSON_ARGUMENTS
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from benchmarks import calls


def cpu() -> float:
    """Return the CPU seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main(name: str, store: str, scratch: str, jobs: str, times: str, arguments: str) -> None:
    """Print the fastest pass as JSON."""
    where = calls.Where(Path(store), Path(scratch), int(jobs))
    passes = []
    for _ in range(int(times)):
        run = getattr(calls, name)(where, **json.loads(arguments))
        before, started = cpu(), time.perf_counter()
        done = run()
        wall, used = time.perf_counter() - started, cpu() - before
        passes.append({"wall_s": done.seconds or wall, "cpu_s": used, "records": done.records,
                       "bytes": done.bytes})
    print(json.dumps(min(passes, key=lambda result: result["wall_s"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
