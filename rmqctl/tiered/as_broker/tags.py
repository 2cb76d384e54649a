"""A consumer's tag expression as a filter of pulls: by the unit's code first, then by the tag.

A broker stops at the code and leaves tags that share it to the client; here they are left out.
"""

from __future__ import annotations

from rmqctl.errors import FormatError, UsageError
from rmqctl.formats.local import javahash, message
from rmqctl.formats.local import properties as props
from rmqctl.store.objects import java_text

_INT = 0xFFFFFFFF
ALL = "*"


class TagMatching:
    """``A || B``: one of the tags; ``*``: any. UsageError for an empty expression."""

    def __init__(self, expression: str) -> None:
        self.tags = {part.strip() for part in expression.split("||") if part.strip()}
        if not self.tags:
            raise UsageError("an empty tag expression; give a tag, or several as 'A || B'")
        self._codes = {javahash.tags_code(tag) & _INT for tag in self.tags}

    def by_code(self, tags_code: int) -> bool:
        """A broker compares the lower half of the code."""
        return ALL in self.tags or tags_code & _INT in self._codes

    def by_message(self, data: bytes) -> bool:
        if ALL in self.tags:
            return True
        try:
            record = message.decode(data)
        except FormatError:
            return False
        return props.parse(java_text(record.properties)).get(props.TAGS) in self.tags
