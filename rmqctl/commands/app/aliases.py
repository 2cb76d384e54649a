"""Hidden alternative names of commands: short names, and mqadmin's names with mqadmin's options.

An alias is another name for an rmqctl command, with some options spelled differently. An alias of a
command that only reads a store runs the command. Any other alias prints the command line to type,
completed with the given values. Names are case-insensitive, as in mqadmin.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rmqctl.commands import STORE_VARIABLE
from rmqctl.errors import OtherCommandError, UsageError

_ARGUMENT = ""
"""Translation of an mqadmin option whose value becomes an argument of rmqctl's command."""
_STORE = "STORE"

Worded = str | tuple[str, ...] | Callable[[str], Sequence[str]] | None
"""Translation of an mqadmin option; one of the following:

* the name of rmqctl's option, which keeps the value;
* `_ARGUMENT`;
* a function that returns rmqctl's words for the value;
* for a flag, a tuple of rmqctl's words;
* None, or () for a flag: rmqctl ignores the option.
"""


class Translated(NamedTuple):
    """The words typed after an alias, translated for rmqctl's command.

    ``kept``: options and untranslated words. ``arguments``: the arguments. ``ignored``: the mqadmin
    options that have no effect.
    """

    kept: list[str]
    arguments: list[str]
    ignored: list[str]


class Alias(NamedTuple):
    """An alias: its ``name`` as mqadmin spells it, and rmqctl's ``command`` for it.

    ``options``: the translation of each mqadmin option.
    ``first``, ``last``: words to insert before and after the typed words.
    ``says``: why the command is only printed; None if the alias runs it.
    ``needs``: the placeholder to print for each required argument or option that was not typed.
    """

    name: str
    command: tuple[str, ...]
    options: Mapping[str, Worded] = {}
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    says: str | None = None
    needs: Mapping[str, str] = {}

    def words(self, typed: Sequence[str]) -> tuple[list[str], str | None]:
        """Translate the words typed after the alias. Return (words for rmqctl's command, note on
        ignored options or None).

        Raises: OtherCommandError for an alias that only prints its command; UsageError if no store
        is given.
        """
        if self.says is not None:
            raise OtherCommandError(self.says, self.answer(typed))
        kept, arguments, ignored = self._translated(typed)
        if self.options.keys() >= _ID.keys() and arguments and not kept \
                and not os.environ.get(STORE_VARIABLE):
            # mqadmin has no store argument, so the id would be taken for the store.
            raise UsageError(f"Missing argument 'STORE': name a store, or set {STORE_VARIABLE}")
        is_quiet = {"-q", "-qq", "--quiet"} & set(kept)
        note = None if is_quiet or not ignored else (
            f"rmqctl: ignored (no effect on a store): {', '.join(dict.fromkeys(ignored))}")
        return [*self.first, *kept, *arguments, *self.last], note

    def answer(self, typed: Sequence[str]) -> str:
        """Return rmqctl's command line for ``typed``, quoted for a shell. Raises: UsageError."""
        kept, arguments, _ = self._translated(typed)
        is_named = bool(kept) and not kept[0].startswith("-")
        store, options = (kept[0], kept[1:]) if is_named else (_STORE, kept)
        for option, placeholder in self.needs.items():
            if option == _ARGUMENT:
                arguments = arguments or [placeholder]
            elif option not in options:
                options += [option, placeholder]
        return shlex.join(["rmqctl", *self.command, *self.first, store, *arguments, *options,
                           *self.last])

    def _translated(self, typed: Sequence[str]) -> Translated:
        translated = Translated([], [], [])
        translations = {**_NAME_SERVER, **self.options}
        remaining = iter(typed)
        for word in remaining:
            option, joined, value = word.partition("=")
            if option not in translations:
                translated.kept.append(word)
                continue
            translation = translations[option]
            if isinstance(translation, tuple):
                (translated.kept if translation else translated.ignored).extend(
                    translation or [option])
                continue
            argument = value if joined else next(remaining, None)
            if argument is None:
                raise UsageError(f"Option {option!r} requires an argument.")
            if translation is None:
                translated.ignored.append(option)
            elif translation == _ARGUMENT:
                translated.arguments.append(argument)
            else:
                translated.kept.extend([translation, argument] if isinstance(translation, str)
                                       else translation(argument))
        return translated


# Translations of values


def _if_false(*words: str) -> Callable[[str], Sequence[str]]:
    """Return the translation of an mqadmin option that takes true or false: ``words`` if the value
    is false, else no words.
    """
    return lambda value: words if value.strip().lower() == "false" else ()


def _order(value: str) -> Sequence[str]:
    return ["--order" if value.strip().lower() == "true" else "--no-order"]


def _attributes(value: str) -> Sequence[str]:
    """Return rmqctl's options for updateTopic's list of attributes, such as ``+a=b,+c=d``.
    Raises: UsageError for an item such as ``-e``, which removes the attribute ``e``.
    """
    words: list[str] = []
    for attribute in filter(None, map(str.strip, value.split(","))):
        if not attribute.startswith("+") or "=" not in attribute:
            raise UsageError(f"-a {attribute}: rmqctl can only set attributes, as +NAME=VALUE")
        words += ["--attribute", attribute[1:]]
    return words


def _redirected(_value: str) -> Sequence[str]:
    raise OtherCommandError("-f: the metadata is written to standard output",
                            "rmqctl exportMetadata STORE > metadata.json")


def _by_tag(value: str) -> Sequence[str]:
    if value.strip().lower() == "true":
        raise OtherCommandError("-f true counts by tag",
                                "rmqctl stats STORE --by tag --topic TOPIC")
    return ()


# Options of many commands


def _forms(names: str, ours: Worded = None) -> dict[str, Worded]:
    """Return a dictionary that translates each spelling in ``names`` to rmqctl's option ``ours``.
    If ``ours`` is None, rmqctl ignores the option.
    """
    return dict.fromkeys(names.split(), ours)


_NAME_SERVER = _forms("-n --namesrvAddr")
_BROKER = _forms("-b --brokerAddr --brokerName --broker")
_CLUSTER = _forms("-c --cluster --clusterName")
_WHERE = {**_BROKER, **_CLUSTER}
_TOPIC = _forms("-t --topic", "--topic")
_GROUP = _forms("-g --group --groupName --consumerGroup", "--group")
_QUEUE = _forms("-i --queueId --qid", "--queue")
_CHARSET = _forms("-c --charsetName")
_ID = _forms("-i --msgId", _ARGUMENT)
_TAG = _forms("-s --subExpression", "--tag")
_TIMES = {**_forms("-b --beginTimestamp", "--since"), **_forms("-e --endTimestamp", "--until")}
_BODY = _forms("-d --printBody", _if_false("--body", "none"))
_RESET = {**_GROUP, **_TOPIC, **_WHERE, **_forms("-s --timestamp", "--time"),
          **_forms("-f --force"), **_forms("-q --queue", "--queue")}
_NEW_TOPIC = {
    **_WHERE, **_forms("-t --topic", _ARGUMENT), **_forms("-p --perm", "--perm"),
    **_forms("-r --readQueueNums", "--read-queues"),
    **_forms("-w --writeQueueNums", "--write-queues"), **_forms("-o --order", _order),
    **_forms("-a --attributes", _attributes), **_forms("-u --unit -s --hasUnitSub")}
_WHOSE = {"--group": "GROUP"}
_CREATES = "rmqctl changes a topic only while no broker runs"
_DELETES = "rmqctl deletes a {} only while no broker runs, and shows a plan first"
_RESETS = "rmqctl resets offsets only while no broker runs, and shows a plan first"
_EXPIRES = "rmqctl moves expired files aside, and shows a plan first"
_SERVED = "with -n 127.0.0.1:9876 while rmqctl serves the store"
_EITHER = "rmqctl reads the configuration from RocksDB as it does from JSON files"
_NO_CONF = "a store does not contain the broker's configuration; broker.conf does"

_READ = (
    Alias("topics", ("config",), last=("topics",)),
    Alias("ls", ("info",)),
    Alias("topicList", ("config",), _forms("-c --clusterModel", ()), last=("topics",)),
    Alias("topicStatus", ("offsets",), _CLUSTER),
    Alias("brokerStatus", ("info",), _WHERE),
    Alias("statsAll", ("stats",), {**_TOPIC, **_forms("-a --activeTopic", ())},
          first=("--by", "topic")),
    Alias("brokerConsumeStats", ("offsets",), {
        **_BROKER, **_forms("-t --timeoutMillis -l --level -o --order")}),
    Alias("getBrokerEpoch", ("config",), {**_WHERE, **_forms("-i --interval")}, last=("epochs",)),
    Alias("queryMsgById", ("query", "id"), {
        **_ID, **_CLUSTER, **_forms("-f --bodyFormat -u --unitName")}),
    Alias("queryMsgByUniqueKey", ("query", "id"), {
        **_ID, **_CLUSTER, **_forms("-a --showAll", ())}, first=("--unique",)),
    Alias("queryMsgByKey", ("query", "key"), {
        **_CLUSTER, **_TIMES, "--msgKey": "--key", **_forms("-m --maxNum", "--limit")},
          first=("--limit", "64")),
    Alias("queryMsgByOffset", ("query", "offset"), {
        **_BROKER, "--queueId": "--queue", **_forms("-o --offset", _ARGUMENT),
        **_forms("-f --bodyFormat")}),
    Alias("queryCq", ("read",), {
        **_BROKER, **_TOPIC, **_forms("-q --queue", "--queue"), **_forms("-i --index", "--offset"),
        **_forms("-c --count", "--limit"), **_forms("-g --consumer")},
          first=("--limit", "10", "--fields",
                 "queue_offset,physical_offset,total_size,tags,store_timestamp")),
    Alias("printMsg", ("read",), {
        **_TIMES, **_CHARSET, **_TAG, **_BODY, **_forms("-l --lmqParentTopic")}),
    Alias("printMsgByQueue", ("read",), {
        **_TIMES, **_CHARSET, **_TAG, **_QUEUE, **_BODY, **_forms("-a --brokerName -p --print"),
        **_forms("-f --calculate", _by_tag)}),
    Alias("consumeMessage", ("read",), {
        **_BROKER, **_QUEUE, **_forms("-o --offset", "--offset"),
        **_forms("-g --consumerGroup"), **_forms("-s --beginTimestamp", "--since"),
        **_forms("-e --endTimestamp", "--until"), **_forms("-c --MessageNumber", "--limit")},
          first=("--limit", "128")),
    Alias("consumerProgress", ("offsets",), {
        **_CLUSTER, "--groupName": "--group", "--topicName": "--topic",
        **_forms("-s --showClientIP")}),
    Alias("dumpCompactionLog", ("dump",), _forms("-f --file", _ARGUMENT)),
    Alias("checkRocksdbCqWriteProgress", ("verify",), {
        **_CLUSTER, **_forms("--nameserverAddr -t --topic -cf --checkFrom")},
          last=("--only", "consumequeue")),
    Alias("exportMetadata", ("config",), {
        **_WHERE, **_forms("-f --filePath", _redirected),
        **_forms("-t --topic", ("--only", "topics")),
        **_forms("-g --subscriptionGroup", ("--only", "groups")),
        **_forms("-s --specialTopic", ("--special",))},
          first=("--output", "json"), last=("metadata",)),
)

_ANSWERED = (
    Alias("topicRoute", ("config",), {
        **_forms("-t --topic"), **_forms("-l --list", ())}, last=("topics",),
          says="a store contains no routes, only the queues and permissions of its topics"),
    Alias("clusterList", ("info",), {
        **_CLUSTER, **_forms("-i --interval"), **_forms("-m --moreStats", ())},
          says="a store contains nothing about its cluster, only its own broker's files"),
    Alias("getBrokerConfig", ("config", "check"), _WHERE, first=("broker.conf",), says=_NO_CONF),
    Alias("exportConfigs", ("config", "check"), {**_WHERE, **_forms("-f --filePath")},
          first=("broker.conf",), says=_NO_CONF),
    Alias("exportMetrics", ("stats",), {**_WHERE, **_forms("-f --filePath")},
          last=("--output", "json"), says="a store contains messages, but no metrics of a broker"),
    Alias("getConsumerConfig", ("config",), _forms("-g --groupName"), last=("groups",),
          says="rmqctl shows the configuration of all groups"),
    Alias("exportMetadataInRocksDB", ("config",), _forms(
        "-p --path -t --configType -j --jsonEnable"),
          last=("topics", "--output", "json"), says=_EITHER),
    Alias("rocksDBConfigToJson", ("config",), {
        **_WHERE, **_forms("-p --configPath -t --configType -j --jsonEnable -e --exportFile "
                           "--nameserverAddr")},
          last=("topics", "--output", "json"), says=_EITHER),
    Alias("haStatus", ("diff",), {**_WHERE, **_forms("-i --interval")}, last=("SLAVE",),
          says="files do not show how far a slave lags, but two stores can be compared"),
    Alias("getSyncStateSet", ("diff",),
          {**_WHERE, **_forms("-a --controllerAddress -i --interval")},
          last=("SLAVE",),
          says="files do not show how far a slave lags, but two stores can be compared"),
    Alias("DecodeMessageId", ("query", "id"), _ID, needs={_ARGUMENT: "ID"},
          says="rmqctl finds a message by its id"),
    Alias("queryMsgTraceById", ("read",), {
        **_forms("-i --msgId", "--key"), **_forms("-t --traceTopic", "--topic"), **_TIMES,
        **_CLUSTER, **_forms("-m --maxNum", "--limit")},
          needs={"--topic": "RMQ_SYS_TRACE_TOPIC", "--key": "ID"},
          says="traces are messages in the store that contains the trace topic"),
    Alias("sendMessage", ("write",), {
        **_BROKER, **_TOPIC, **_QUEUE, **_forms("-p --body", "--body"),
        **_forms("-k --key", "--key"), **_forms("-c --tags", "--tag"),
        **_forms("-m --msgTraceEnable")},
          needs={"--topic": "TOPIC", "--body": "BODY"},
          says="rmqctl writes a message only while no broker runs"),
    Alias("updateTopic", ("topic", "create"), _NEW_TOPIC, needs={_ARGUMENT: "TOPIC"},
          says=_CREATES),
    Alias("updateTopicList", ("topic", "create"), {**_WHERE, **_forms("-f --filename")},
          needs={_ARGUMENT: "TOPIC"}, says="rmqctl creates or changes one topic at a time"),
    Alias("updateTopicPerm", ("topic", "create"), _NEW_TOPIC,
          needs={_ARGUMENT: "TOPIC", "--perm": "PERM"}, says=_CREATES),
    Alias("deleteTopic", ("delete", "topic"), {**_forms("-t --topic", _ARGUMENT), **_CLUSTER},
          needs={_ARGUMENT: "TOPIC"}, says=_DELETES.format("topic")),
    *(Alias(name, ("config",), {**_WHERE, **_forms(
        "-t --topic -qn --totalQueueNum -mf --mapFile -fr --forceReplace")}, last=("mappings",),
            says="rmqctl shows the queues of static topics, but does not change them")
      for name in ("updateStaticTopic", "remappingStaticTopic")),
    Alias("resetOffsetByTime", ("offsets", "reset"), {
        **_RESET, **_forms("-o --offset")}, needs={**_WHOSE, "--time": "TIME"}, says=_RESETS),
    Alias("resetOffsetByTimeOld", ("offsets", "reset"), _RESET,
          needs={**_WHOSE, "--time": "TIME"}, says=_RESETS),
    Alias("skipAccumulatedMessage", ("offsets", "reset"), _RESET, needs=_WHOSE,
          last=("--to", "latest"), says=_RESETS),
    Alias("cloneGroupOffset", ("offsets", "copy"), {
        **_forms("-s --srcGroup", "--from-group"), **_forms("-d --destGroup", "--to-group"),
        **_TOPIC, **_forms("-o --offline")}, needs={"--from-group": "GROUP", "--to-group": "GROUP"},
          says="rmqctl copies offsets only while no broker runs, and shows a plan first"),
    Alias("updateSubGroup", ("serve",), {**_WHERE, **_forms(
        "-g --groupName -s --consumeEnable -m --consumeFromMinEnable -d --consumeBroadcastEnable "
        "-o --consumeMessageOrderly -q --retryQueueNums -r --retryMaxTimes -p --groupRetryPolicy "
        "-i --brokerId -w --whichBrokerWhenConsumeSlowly -a --notifyConsumerIdsChanged "
        "--attributes")}, last=("--writable",),
          says=f"mqadmin itself changes groups {_SERVED}"),
    Alias("deleteSubGroup", ("delete", "group"), {
        **_WHERE, **_forms("-g --groupName", _ARGUMENT), **_forms("-r --removeOffset")},
          needs={_ARGUMENT: "GROUP"}, says=_DELETES.format("group")),
    Alias("setConsumeMode", ("serve",), {**_WHERE, **_forms(
        "-t --topicName -g --groupName -m --mode -q --popShareQueueNum")}, last=("--writable",),
          says=f"mqadmin itself sets the mode of a group {_SERVED}"),
    Alias("deleteExpiredCommitLog", ("expire",), _WHERE, last=("--older-than", "72h"),
          says=_EXPIRES),
    Alias("cleanExpiredCQ", ("expire",), _WHERE, last=("--older-than", "72h"), says=_EXPIRES),
)
ALIASES = {alias.name.lower(): alias for alias in (*_READ, *_ANSWERED)}

_RUNNING = """
addBroker addWritePerm allocateMQ checkMsgSendRT cleanBrokerMetadata cleanUnusedTopic clusterRT
consumer consumerConnection consumerStatus copyAcl copyUser createAcl createUser deleteAcl
deleteKvConfig deleteUser electMaster exportPopRecord getAcl getColdDataFlowCtrInfo
getConsumerStatus getControllerConfig getControllerMetaData getNamesrvConfig getUser listAcl
listUser producer producerConnection removeBroker
removeColdDataFlowCtrGroupConfig resetMasterFlushOffset sendMsgStatus setCommitLogReadAheadMode
startMonitoring topicClusterList updateAcl updateBrokerConfig updateColdDataFlowCtrGroupConfig
updateControllerConfig updateKvConfig updateNamesrvConfig updateOrderConf
updateSubGroupList updateUser wipeWritePerm
"""
_WITHOUT = {name.lower(): name for name in _RUNNING.split()}
"""Commands of mqadmin that have no counterpart in rmqctl."""


def find(word: str) -> Alias | None:
    """Return the alias with this name. Raises: UsageError for an mqadmin command that has no
    counterpart.
    """
    name = _WITHOUT.get(word.lower())
    if name is not None:
        raise UsageError(f"rmqctl has no counterpart to mqadmin's {name}: it needs a running "
                         "broker, name server or controller")
    return ALIASES.get(word.lower())


def named() -> Iterator[str]:
    """Return the names of all aliases, as mqadmin spells them."""
    return (alias.name for alias in ALIASES.values())
