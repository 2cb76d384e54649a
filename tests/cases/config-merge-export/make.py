from storekit import OUT, golden, group_table, put, queues, topic_table, whole_config

# Topics with other settings than those that mqadmin exportMetadata saved.
golden("4.9.3/basic")
whole_config()
names = queues()
first, *_, last = names
put("config/topics.json", topic_table({name: 4 for name in names if name != last}))
export = topic_table({**names, first: 8})
put("metadata.json", {"topicConfigTable": export["topicConfigTable"],
                      "subscriptionGroupTable": group_table(["g1"])["subscriptionGroupTable"],
                      "exportTime": 1700000000000}, OUT)
