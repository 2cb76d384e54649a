from storekit import STORE, files, golden, put, topic_table

golden("5.3.3/compaction")
for name in files("commitlog")[:4]:
    (STORE / name).unlink()
table = topic_table({"TP_user_Topic": 2, "TP_audit_Event0": 2})
table["topicConfigTable"]["TP_user_Topic"]["attributes"] = {"cleanup.policy": "COMPACTION"}
put("config/topics.json", table)
