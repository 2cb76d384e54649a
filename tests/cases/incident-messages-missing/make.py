import json
import shutil

from storekit import STORE, get, golden, put, queues, whole_config

golden("4.9.3/basic")
whole_config()
first, second = list(queues())[:2]
shutil.rmtree(STORE / "consumequeue" / first / "1")
table = json.loads(get("config/consumerOffset.json"))
table["offsetTable"][f"{second}@g1"]["0"] = 5000
put("config/consumerOffset.json", table)
