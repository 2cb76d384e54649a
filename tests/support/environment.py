"""The environment variables that tests see: those of a plain login shell.

A variable that a developer or a CI machine happens to set (``PYTHONUNBUFFERED``, ``COLUMNS``) would
let tests pass that fail for users, or the reverse.
"""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from pathlib import Path

LOGIN = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "PWD", "TMPDIR", "LANG", "TZ"}
SUITE = {"RMQCTL_TESTING", "RMQCTL_TESTING_CLOCK", "RMQCTL_SEED", "RMQCTL_KERNEL", "RMQCTL_GOLDEN"}
INSTALLATION = {"JAVA_HOME", "LD_LIBRARY_PATH", "NODE_EXTRA_CA_CERTS", "PYTHONPATH",
                "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY",
                "HTTPS_PROXY", "NO_PROXY"}
"""Where Java, libraries and package registries are; tests of clients install some."""
AROUND = {"LD_PRELOAD", "PYTHONMALLOC", "ASAN_OPTIONS", "UBSAN_OPTIONS"}
"""Set by a sanitizer that the whole run is started under."""
CLOCK = "RMQCTL_TESTING_CLOCK"
PREFIXES = ("PYTEST_", "PIP_", "NPM_CONFIG_", "COVERAGE_", "COV_CORE_")


def reduce_to_login(environ: MutableMapping[str, str] = os.environ) -> None:
    """Delete every variable that a plain login shell does not have and no tool around needs."""
    faked = "FAKETIME" in environ
    kept = LOGIN | SUITE | INSTALLATION | AROUND
    for name in set(environ) - kept:
        if not name.startswith(PREFIXES):
            del environ[name]
    if environ is os.environ:
        for name in ("COLUMNS", "LINES"):  # readline sets them where Python does not see it
            os.unsetenv(name)
    if faked:
        _shift_clock(environ)


def _shift_clock(environ: MutableMapping[str, str]) -> None:
    """Let Python shift the clock of the processes to come, as ``faketime`` did for this one.

    libfaketime itself cannot stay: its releases up to 0.9.10 make threads of Python 3.11 wait for
    years, or sleep with EINVAL, and a JVM takes minutes to start.
    """
    up = float(Path("/proc/uptime").read_text().split()[0])
    booted = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines()
                  if line.startswith("btime "))
    environ[CLOCK] = str(round(time.time() - booted - up))
    environ.pop("LD_PRELOAD", None)
    shifting = str(Path(__file__).parent / "shifted_clock")
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [shifting, environ.get("PYTHONPATH")]))
