from storekit import golden, put, queues, topic_table, whole_config

golden("5.3.3/basic")
whole_config()
names = queues()
put("config/topics.json", topic_table({name: 4 for name in names if name != "TP_ship_Event2"}))
