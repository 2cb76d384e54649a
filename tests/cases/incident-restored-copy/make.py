import os

from storekit import OUT, STORE, golden, whole_config

golden("4.9.3/basic")
whole_config()
for path in (STORE / "commitlog").iterdir():
    os.utime(path, (0, 0))
(OUT / "broker.conf").write_text("fileReservedTime=96\ndeleteWhen=03\n")
