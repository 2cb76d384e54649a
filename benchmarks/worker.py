"""Runs one function of benchmarks.calls some times in this process and prints the best pass.

python -m benchmarks.worker NAME STORE JSON_ARGUMENTS TIMES
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks import calls


def main(name: str, store: str, arguments: str, times: str) -> None:
    """Prints the fastest pass as JSON."""
    function = getattr(calls, name)
    keywords = json.loads(arguments)
    passes = []
    for _ in range(int(times)):
        cpu, wall = time.process_time(), time.perf_counter()
        records, size = function(Path(store), **keywords)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        passes.append({"wall_s": wall, "cpu_s": cpu, "records": records, "bytes": size})
    print(json.dumps(min(passes, key=lambda done: done["wall_s"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
