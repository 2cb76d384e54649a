from storekit import golden, put, topic_table, whole_config

golden("5.3.3/basic")
whole_config()
put("config/topics.json", topic_table({}))
