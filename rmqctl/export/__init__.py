"""Export messages from many stores to files by topic and day.

The package contains the plan, the tasks that any pool can run, the staging folder and the manifest.
"""

import os

# Before Arrow is loaded: its own allocator keeps more for each thread than it gives back, 50 MiB of
# the 210 of an export.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
