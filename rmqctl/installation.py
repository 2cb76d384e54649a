"""The installation of the running rmqctl, and the command that adds an extra to it."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import PurePath

IMAGE = "RMQCTL_IMAGE"
"""Name of the environment variable that the Dockerfile sets."""


def command_for(extra: str, *, prefix: str | None = None, is_frozen: bool | None = None,
                in_image: bool | None = None) -> str:
    """Return the command or sentence for adding ``extra`` to the running rmqctl. None for a
    parameter means the value of this process.

    ``prefix``: folder of the Python environment.
    ``is_frozen``: whether rmqctl is the one-file executable.
    ``in_image``: whether rmqctl runs in the project's Docker image.
    """
    wanted = f"'rmqctl[{extra}]'"
    parts = [part.lower() for part in PurePath(prefix or sys.prefix).parts]
    if getattr(sys, "frozen", False) if is_frozen is None else is_frozen:
        return (f"this executable was built without it; build one with: make binary EXTRAS={extra},"
                f" or: pip install {wanted}")
    # pipx: …/pipx/venvs/rmqctl; uv tool: …/uv/tools/rmqctl; uvx: an environment in uv's cache.
    pairs = [*pairwise(parts)]
    if ("pipx", "venvs") in pairs:
        return f"pipx install --force {wanted}"
    if ("uv", "tools") in pairs:
        return f"uv tool install {wanted}"
    if any(part.startswith(("archive-v", "environments-v")) for part in parts):
        return f"uvx --from {wanted} rmqctl"
    if IMAGE in os.environ if in_image is None else in_image:
        return f"docker build --build-arg EXTRAS={extra} -t rmqctl ."
    return f"pip install {wanted}"
