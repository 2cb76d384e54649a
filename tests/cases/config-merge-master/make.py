from storekit import STORE, golden, group_table, put, queues, topic_table, whole_config

# A replica that became master with one topic left, and the old master beside it.
golden("5.3.3/basic")
golden("5.3.3/basic", to="master")
whole_config()
names = queues()
put("config/topics.json", topic_table({next(iter(names)): 4}))
MASTER = STORE.parent / "master"
put("config/topics.json", topic_table({**names, "never-used": 3}), MASTER)
put("config/subscriptionGroup.json", group_table(["g1", "g2"]), MASTER)
