"""The environment variables that tests see: those of a plain login shell.

A variable that a developer or a CI machine happens to set (``PYTHONUNBUFFERED``, ``CI``, ``COLUMNS``)
would let tests pass that fail for users, or the reverse.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

LOGIN = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "PWD", "TMPDIR", "LANG", "TZ"}
SUITE = {"RMQCTL_TESTING", "RMQCTL_SEED", "RMQCTL_KERNEL", "RMQCTL_GOLDEN"}
INSTALLATION = {"JAVA_HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "SSL_CERT_FILE", "http_proxy",
                "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
"""Where Java, libraries and package registries are; tests of clients install some."""
AROUND = {"LD_PRELOAD", "PYTHONMALLOC", "FAKETIME", "ASAN_OPTIONS", "UBSAN_OPTIONS"}
"""Set by a tool that the whole run is started under: a sanitizer, a faked clock."""
PREFIXES = ("PYTEST_", "PIP_", "NPM_CONFIG_", "FAKETIME_", "COVERAGE_", "COV_CORE_")


def reduce_to_login(environ: MutableMapping[str, str] = os.environ) -> None:
    """Delete every variable that a plain login shell does not have and no tool around needs."""
    kept = LOGIN | SUITE | INSTALLATION | AROUND
    for name in set(environ) - kept:
        if not name.startswith(PREFIXES):
            del environ[name]
