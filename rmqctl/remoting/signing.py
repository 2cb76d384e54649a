"""Signatures of requests, as RocketMQ's ACL 1.0 has them (4.4.0 to 5.3.2)."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping

ACCESS_KEY, SECRET_KEY, SIGNATURE = "AccessKey", "SecretKey", "Signature"
_NOT_SIGNED = (SIGNATURE, "_UNIQUE_KEY_QUERY")


def signature(ext: Mapping[str, str], body: bytes, secret: str) -> bytes:
    """The signature of a request: HMAC-SHA1, in base64, of the values of its header's fields in the
    order of their names, and its body. ``AccessKey`` is one of the fields.
    """
    signed = "".join(ext[name] for name in sorted(ext) if name not in _NOT_SIGNED)
    code = hmac.new(secret.encode("utf-8", "replace"), signed.encode("utf-8", "replace"), "sha1")
    code.update(body)
    return b64encode(code.digest())
