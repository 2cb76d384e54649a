from storekit import OUT, STORE, cut, files, get, golden, put, whole_config

golden("5.3.3/basic")
whole_config()
golden("5.3.3/basic", to="replica")
whole_config(at=1, store=OUT / "replica")
last = files("commitlog")[-1]
cut(last, len(get(last).rstrip(b"\0")) // 4096 * 4096)
put(files("index")[-1], b"")
put("config/consumerOffset.json", b"")
(STORE / "abort").write_bytes(b"")
