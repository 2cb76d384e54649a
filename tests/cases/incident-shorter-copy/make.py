from pathlib import Path

from storekit import OUT, entries, files, golden, queues, whole_config, zero

golden("4.9.3/basic")
whole_config()
golden("4.9.3/basic", to="backup")
whole_config(store=OUT / "backup")
last_of_the_slave = files("commitlog")[-2]
base = int(Path(last_of_the_slave).name)
starts = sorted(place for topic, count in queues().items() for number in range(count)
                for file in files(f"consumequeue/{topic}/{number}")
                for place, size, _ in entries(file) if size)
end = next(place for place in starts if place >= base + 30000)
zero(last_of_the_slave, end - base, 65536)
