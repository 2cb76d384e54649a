import json

from storekit import appended, group_table, offset_table, put, topic_table

T, REVIVE = 1_700_000_000_000, "rmq_sys_REVIVE_LOG_DefaultCluster"
CK = {"bm": 0, "bn": "broker-a", "c": "billing", "d": [0, 1, 2, 3], "it": 60000, "n": 4,
      "pt": T + 5000, "q": 0, "ro": 0, "so": 0, "t": "orders"}
ACK = {"ao": 0, "bn": "broker-a", "c": "billing", "pt": T + 5000, "q": 0, "so": 0, "t": "orders"}
appended([
    *({"topic": "orders", "body": f"order {number}", "store_timestamp": T + number,
       "properties": {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number}"}} for number in range(4)),
    {"topic": REVIVE, "body": json.dumps(CK), "store_timestamp": T + 64_000,
     "properties": {"TAGS": "ck", "TIMER_DELIVER_MS": str(T + 64_000)}},
    {"topic": REVIVE, "body": json.dumps(ACK), "store_timestamp": T + 65_000,
     "properties": {"TAGS": "ack", "TIMER_DELIVER_MS": str(T + 65_000)}},
    {"topic": "%RETRY%billing_orders", "body": "order 1", "store_timestamp": T + 68_000,
     "reconsume_times": 1, "properties": {
         "UNIQ_KEY": f"{1:032X}", "KEYS": "k1", "1ST_POP_TIME": str(T + 5000)}}])
put("config/topics.json", topic_table({"orders": 1, "%RETRY%billing_orders": 1}))
put("config/subscriptionGroup.json", group_table(["billing"]))
put("config/consumerOffset.json", offset_table({
    f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {"0": 0}, "orders@billing": {"0": 4}}))
