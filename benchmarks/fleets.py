"""Costs of the pipeline's jobs over many small stores, with the local engine and on Spark.

    python -m benchmarks.fleets --dir DIR [--stores 345]

The stores are links to the files of examples/store (5 log files, 320 KiB). CPU seconds are those of
all processes, including Spark's Java and Python workers, so they are valid on a busy machine; this
requires Linux. Each figure is a single run, with the startup of the program and of Spark.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.pipeline_scale import fleet
from benchmarks.process import ROOT

STORE = ROOT / "examples" / "store"
_SUBREAPER = 36


def taken(command: list[str]) -> tuple[float, float]:
    """Run a command; return (seconds, CPU seconds of its processes). Raises: RuntimeError if the
    command fails.
    """
    # Become the parent of orphaned children: else their CPU time is not counted.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--stores", type=int, default=345)
    given = parser.parse_args()
    out = given.dir / "out"
    print("| job | local CPU s | Spark CPU s | Spark of local | local wall s | Spark wall s |")
    print("| --- | --- | --- | --- | --- | --- |")
    with fleet(STORE, given.stores, given.dir) as roots:
        for job in ("stats", "verify", "export"):
            results = []
            for engine in ("local", "spark"):
                more = ["--out", str(out)] if job == "export" else []
                results.append(taken([sys.executable, "-m", "rmqctl", "pipeline", job, *roots,
                                      *more, "--engine", engine]))
                if out.exists():
                    shutil.rmtree(out)
            (local_wall, local), (spark_wall, spark) = results
            print(f"| {job} | {local:.1f} | {spark:.1f} | {spark / local:.1f} | {local_wall:.1f} | "
                  f"{spark_wall:.1f} |", flush=True)


if __name__ == "__main__":
    main()
