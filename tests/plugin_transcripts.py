"""The ``--update`` option of pytest: write what rmqctl says now into the transcripts.

Loaded by ``pytest_plugins = ["tests.plugin_transcripts"]`` in tests/conftest.py. Without it
``RMQCTL_UPDATE=1 pytest tests/test_transcripts.py`` does the same.
"""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update", action="store_true", help="write today's output into tests/transcripts"
    )


def wants_update(config: pytest.Config) -> bool:
    """Whether transcripts are to be rewritten instead of compared."""
    return bool(config.getoption("--update", default=False) or os.environ.get("RMQCTL_UPDATE"))
