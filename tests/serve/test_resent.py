"""Messages that consumers send into their retry topics by themselves, as they do where they could
not send them back; what the store has then was written so by brokers of both versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local import properties
from rmqctl.formats.local.message import decode
from tests.serve.running import Running, empty_store, serving
from tests.serve.test_writable import pulled, sent

RETRY, DEAD = "%RETRY%CG", "%DLQ%CG"


@pytest.fixture(params=["4.9.3", "5.3.3"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    root = empty_store(tmp_path / "store", request.param)
    with serving(root, settings=ServeSettings(writable=True)) as running:
        yield running


def test_after_too_many_times_it_is_a_dead_letter(served: Running) -> None:
    writer = served.brokers[0].writer
    assert writer is not None
    is_5 = writer.settings.profile.generation >= 5
    with served.client() as client:
        for times, most in ((15, None), (16, None), (17, None), (3, 3), (4, 3), (0, 0), (0, -1)):
            asked = {} if most is None else {"l": most}
            answer = sent(client, RETRY, b"%d of %s" % (times, str(most).encode()),
                          text="WAIT\x01true", j=times, **asked)
            assert (answer.code, answer.ext["queueId"]) == (0, "0")
        again, dead = ([record.body for record in pulled(client, topic)]
                       for topic in (RETRY, DEAD))
        limits = [b"16 of None", b"3 of 3", b"0 of 0"]
        assert set(again) == {b"15 of None", *(limits if is_5 else [])}
        assert set(dead) == {b"17 of None", b"4 of 3", b"0 of -1", *([] if is_5 else limits)}
        properties_list = [properties.parse(record.properties.decode())
                           for record in pulled(client, DEAD)]
        assert {parsed.get("DELAY") for parsed in properties_list} == ({"-1"} if is_5 else {None})
    assert "CG" in served.brokers[0].new_groups


def test_of_orderly_consumers_it_is_a_dead_letter_at_once(served: Running) -> None:
    writer = served.brokers[0].writer
    assert writer is not None
    with served.client() as client:
        sent(client, RETRY, b"before", j=1)
        queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
        client.ask("LOCK_BATCH_MQ", {"consumerGroup": "CG", "clientId": "x", "mqSet": [queue]})
        sent(client, RETRY, b"then", j=1)
        bodies = [record.body for record in pulled(client, DEAD)]
        assert bodies == ([b"then"] if writer.settings.profile.generation >= 5 else [])


def test_a_resent_half_message_is_none_for_a_5x_broker(served: Running) -> None:
    writer = served.brokers[0].writer
    assert writer is not None
    half = "TRAN_MSG\x01true\x02PGROUP\x01g"
    with served.client() as client:
        for more in ("", "\x02DELAY\x0118"):
            sent(client, RETRY, b"x", text=half + more, j=1)
    (waiting,) = served.brokers[0].queue("SCHEDULE_TOPIC_XXXX", 17).pull(0, 9, None).records
    assert served.brokers[0].queue("RMQ_SYS_TRANS_HALF_TOPIC", 0).end == 1
    parsed_properties = properties.parse(decode(waiting).properties.decode())
    assert parsed_properties["REAL_TOPIC"] == (RETRY if writer.settings.profile.generation >= 5
                                               else "RMQ_SYS_TRANS_HALF_TOPIC")


def test_no_batch_goes_into_a_retry_topic(served: Running) -> None:
    writer = served.brokers[0].writer
    assert writer is not None
    with served.client() as client:
        fields = {"a": "P", "b": RETRY, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
                  "i": "", "m": True}
        assert client.ask("SEND_BATCH_MESSAGE", b"", **fields).code == 13
