"""Write messages: a broker's put path, dispatch and flush, with clock and hosts injected."""

from __future__ import annotations
