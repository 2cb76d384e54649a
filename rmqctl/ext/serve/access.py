"""Access control: if access keys are given, clients must sign their requests with one of the keys.

All keys have the rights of an ``admin`` account of a broker's ACL 1.0. Permissions for single
topics or groups do not exist. Requests to the name server need no signature.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import field

from rmqctl.errors import FormatError, UsageError
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.ext.serve.remoting.signing import ACCESS_KEY, SECRET_KEY, SIGNATURE, signature
from rmqctl.formats.config import properties_file
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource

_MAX_SIZE = 1 << 16
_REFUSED = "org.apache.rocketmq.acl.common.AclException: "
"""The prefix of the error text for a refused request, the same as a broker's; clients search for
it.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """The access keys. ``secrets``: secret key for each access key; empty to serve all clients."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def check(self, command: Command) -> None:
        """Raise Failed if the request is not signed, or the signature is invalid."""
        if not self.secrets:
            return
        key = command.ext.get(ACCESS_KEY)
        if key is None:
            raise _refusal("No accessKey is configured")
        secret = self.secrets.get(key)
        if secret is None:
            raise _refusal(f"No acl config for {key[:100]}")
        given = command.ext.get(SIGNATURE, "").encode("utf-8", "replace")
        wanted = signature(command.ext, command.body, secret, command.version)
        if not hmac.compare_digest(wanted, given):
            raise _refusal(f"Check signature failed for accessKey={key}")


    def check_call(self, authorization: str, date_time: str) -> None:
        """Check the signature of a call from a 5.x client. Raises: Failed.

        Form: ``MQv2-HMAC-SHA1 Credential=KEY/…, Signature=…``. The signed text is the value of the
        date header.
        """
        if not self.secrets:
            return
        items = dict(item.strip().partition("=")[::2] for item in authorization.partition(" ")[
            2].split(","))
        key = items.get("Credential", "").partition("/")[0]
        secret = self.secrets.get(key)
        if secret is None:
            raise _refusal(f"No acl config for {key[:100]}")
        wanted = hmac.new(secret.encode("utf-8", "replace"), date_time.encode(), "sha1").hexdigest()
        given = items.get("Signature", "").lower().encode("utf-8", "replace")
        if not hmac.compare_digest(wanted.encode(), given):
            raise _refusal(f"Check signature failed for accessKey={key}")


def _refusal(text: str) -> Failed:
    return Failed(Status.SYSTEM_ERROR, _REFUSED + text)


def read_keys(paths: Iterable[str]) -> Access:
    """Read access keys from client key files (``rocketmq.client.keyFile``): Java properties with
    AccessKey and SecretKey.
    Raises: UsageError, StoreIOError.
    """
    secrets: dict[str, str] = {}
    for path in paths:
        with FileSource(path) as source:
            data = source.read(0, min(source.size, _MAX_SIZE + 1))
        try:
            values = {entry.key: entry.value.strip() for entry in properties_file.parse(data)}
        except FormatError as error:
            raise UsageError(f"{path}: {error.reason}") from None
        key, secret = values.get(ACCESS_KEY), values.get(SECRET_KEY)
        if not key or not secret or len(data) > _MAX_SIZE:
            raise UsageError(f"{path}: not a key file: expected the lines {ACCESS_KEY}=… and "
                             f"{SECRET_KEY}=…")
        if secrets.get(key, secret) != secret:
            raise UsageError(f"{path}: another file has the same {ACCESS_KEY} but a different "
                             "secret")
        secrets[key] = secret
    return Access(secrets)
