import json

from storekit import appended, group_table, offset_table, put, topic_table

T, REVIVE = 1_700_000_000_000, "rmq_sys_REVIVE_LOG_DefaultCluster"


def check_point(start: int, popped: int) -> dict[str, object]:
    body = {"bm": 0, "bn": "broker-a", "c": "billing", "d": [0], "it": 60000, "n": 1, "pt": popped,
            "q": 0, "ro": 0, "so": start, "t": "orders"}
    return {"topic": REVIVE, "body": json.dumps(body), "store_timestamp": popped + 59_000,
            "properties": {"TAGS": "ck", "TIMER_DELIVER_MS": str(popped + 59_000)}}


# The topic was deleted and created again: its messages are younger than the deliveries.
appended([
    check_point(0, T), check_point(700, T),
    *({"topic": "orders", "body": f"new {number}", "store_timestamp": T + 600_000 + number,
       "properties": {"UNIQ_KEY": f"{number:032X}"}} for number in range(3)),
    check_point(2, T + 610_000)])
put("config/topics.json", topic_table({"orders": 1}))
put("config/subscriptionGroup.json", group_table(["billing"]))
put("config/consumerOffset.json", offset_table({"orders@billing": {"0": 3}}))
