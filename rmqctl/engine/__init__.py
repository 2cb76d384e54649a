"""Write messages as a broker does (put path, dispatch and flush); the caller provides clock and
hosts.
"""

from __future__ import annotations
