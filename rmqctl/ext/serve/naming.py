"""The name server's handlers: answer requests for topics and brokers (spec: remoting.md §2)."""

from __future__ import annotations

from typing import Any

from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.ext.serve.remoting.command import write_json


def json_response(value: Any) -> Response:
    """Return a response whose body is a JSON value."""
    return Response(parts=(write_json(value),))


def route(broker: Broker, call: Call) -> Response:
    """Answer with the brokers that have a topic, and the number of the topic's queues on each
    broker.
    """
    name = call.fields["topic"]
    brokers: list[dict[str, Any]] = []
    queues: list[dict[str, Any]] = []
    for member in broker.cluster.brokers.values():
        topic = member.topic(name)
        if topic is None:
            continue
        brokers.append(_broker(member, call))
        queues.append({"brokerName": member.name, "perm": topic.perm,
                       "readQueueNums": topic.read_queues, "topicSysFlag": topic.sys_flag,
                       "writeQueueNums": topic.write_queues})
    if not brokers:
        raise Failed(Status.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: "
                     f"{name}\nSee http://rocketmq.apache.org/docs/faq/ for further details.")
    return json_response({"brokerDatas": brokers, "filterServerTable": {}, "queueDatas": queues})


def _broker(broker: Broker, call: Call) -> dict[str, Any]:
    address = broker.address_for(call.connection)
    return {"brokerAddrs": {"0": str(address)}, "brokerName": broker.name,
            "cluster": broker.cluster.name}


def cluster_info(broker: Broker, call: Call) -> Response:
    """Answer with all brokers, by name and by cluster."""
    brokers = broker.cluster.brokers
    return json_response({
        "brokerAddrTable": {name: _broker(member, call) for name, member in brokers.items()},
        "clusterAddrTable": {broker.cluster.name: list(brokers)}})


def all_topics(broker: Broker, _call: Call) -> Response:
    """Answer as a name server does: with the names of all topics, the cluster and the brokers."""
    names = {name: None for member in broker.cluster.brokers.values() for name in member.topics}
    names[broker.cluster.name] = None
    names.update(dict.fromkeys(broker.cluster.brokers))
    return json_response({"topicList": list(names)})


def topics_of_cluster(broker: Broker, call: Call) -> Response:
    """Answer with all topics of one cluster."""
    if call.fields["cluster"] != broker.cluster.name:
        return json_response({"topicList": []})
    return all_topics(broker, call)


def system_topics(broker: Broker, call: Call) -> Response:
    """Answer with the system topics of the cluster, and with the address of a broker that tools
    can ask for its own system topics.
    """
    return json_response({"brokerAddr": str(broker.address_for(call.connection)), "topicList": [
        *broker.cluster.brokers, broker.cluster.name]})


def no_topics(_broker: Broker, _call: Call) -> Response:
    """Answer with an empty topic list, because there are no unit topics."""
    return json_response({"topicList": []})


def kv_value(broker: Broker, call: Call) -> Response:
    """Answer with a value stored in the name server."""
    namespace, key = call.fields["namespace"], call.fields["key"]
    value = broker.cluster.kv.get(namespace, {}).get(key)
    if value is None:
        raise Failed(Status.QUERY_NOT_FOUND,
                     f"No config item, Namespace: {namespace} Key: {key}")
    return Response({"value": value})


_ORDERS = "ORDER_TOPIC_CONFIG"


def kv_list(broker: Broker, call: Call) -> Response:
    """Answer with the values in a namespace. The namespace of ordered topics also has values
    derived from the topics.
    """
    namespace = call.fields["namespace"]
    values = {name: f"{member.name}:{topic.write_queues}"
              for member in broker.cluster.brokers.values()
              for name, topic in member.topics.items() if topic.order} if (
                  namespace == _ORDERS) else {}
    values |= broker.cluster.kv.get(namespace, {})
    if not values:
        raise Failed(Status.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
    return json_response({"table": values})


HANDLERS: Table = {
    "GET_ROUTEINFO_BY_TOPIC": route,
    "GET_BROKER_CLUSTER_INFO": cluster_info,
    "GET_ALL_TOPIC_LIST_FROM_NAMESERVER": all_topics,
    "GET_TOPICS_BY_CLUSTER": topics_of_cluster,
    "GET_SYSTEM_TOPIC_LIST_FROM_NS": system_topics,
    "GET_UNIT_TOPIC_LIST": no_topics,
    "GET_HAS_UNIT_SUB_TOPIC_LIST": no_topics,
    "GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST": no_topics,
    "GET_KV_CONFIG": kv_value,
    "GET_KVLIST_BY_NAMESPACE": kv_list,
}
