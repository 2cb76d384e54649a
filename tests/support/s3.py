"""An S3 of this machine, simulated by moto."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def simulated(monkeypatch: pytest.MonkeyPatch, bucket: str = "bucket") -> Iterator[Any]:
    """A client of boto3 for it; ``s3://`` of this process, and of those it starts, leads there."""
    pytest.importorskip("s3fs")
    boto3, server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    from fsspec.config import conf

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        monkeypatch.setitem(conf, "s3", {"endpoint_url": endpoint})
        monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", endpoint)
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket=bucket)
        yield client
    finally:
        running.stop()
