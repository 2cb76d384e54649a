"""The properties that a served store's messages get: in the order in which a broker writes them."""

from __future__ import annotations

import random

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.ext.serve.producing import writing
from rmqctl.ext.serve.producing.properties import PropertyBuilder
from rmqctl.formats.local import properties as props
from tests.support.share import RUN

KEY = "UNIQ_KEY\x0100000000\x02"
SENT = KEY + ("TAGS\x01A\x02KEYS\x01k1\x02WAIT\x01true\x02POP_CK\x01x\x02n\x011\x02empty\x01\x02"
              "BBBB\x01x\x01y\x02AaBB\x013\x02AaAa\x01q\x02CLUSTER\x01mine\x02price\x0110")
STORED = {  # as brokers of these versions wrote it
    "4.9.3": "POP_CK\x01x\x02price\x0110\x02KEYS\x01k1\x02UNIQ_KEY\x0100000000\x02"
             "CLUSTER\x01here\x02TAGS\x01A\x02n\x011\x02BBBB\x01x\x01y\x02AaBB\x013\x02AaAa\x01q",
    "5.3.3": "price\x0110\x02MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x0100000000\x02"
             "CLUSTER\x01here\x02BBBB\x01x\x01y\x02AaBB\x013\x02AaAa\x01q\x02TAGS\x01A\x02"
             "KEYS\x01k1\x02WAIT\x01true\x02TRACE_ON\x01true\x02n\x011\x02",
}


def of(version: str) -> PropertyBuilder:
    property_builder = PropertyBuilder(Settings(version=version, cluster="here"))
    property_builder.unique_id = lambda: "made"
    return property_builder


@pytest.mark.parametrize("version", STORED)
def test_properties_are_stored_in_the_order_of_a_broker(version: str) -> None:
    properties = of(version)
    for _ in range(2):  # the order is worked out, and known
        assert properties(SENT) == STORED[version]
        assert properties(SENT + "\x02") == STORED[version]
    assert properties(SENT.replace("10", "9")) == STORED[version].replace("10", "9")


@pytest.mark.parametrize("version", STORED)
def test_what_is_known_of_an_order_is_used_where_it_holds(version: str) -> None:
    properties = of(version)
    texts = ["A", "BBBB", "AaBB", "WAIT", "DELAY", "POP_CK", "CLUSTER", "UNIQ_KEY", "TRACE_ON",
             "3", "\x01", "\x02", "true", ""]
    pick = random.Random(1).choice
    for number in range(3000):
        given = (KEY if number % 3 else "") + "\x02".join(
            pick(texts) + pick(["\x01", "\x01", "\x01", ""]) + pick(texts)
            for _ in range(number % 6))
        assert properties(given) == properties._stored(given), given


@pytest.mark.parametrize("version", STORED)
def test_what_tells_of_a_messages_row_is_found_as_in_all_its_properties(version: str) -> None:
    source, property_builder, plain = random.Random(RUN.seed), of(version), 0
    pieces = ("TAGS", "\x01", "\x02", "\x02", "a", "TAGS\x01", "TAGS\x01b\x02", "DELAY\x01", "3",
              "INNER_NUM\x012\x02", "TIMER_DELAY_MS\x015\x02", "XTAGS\x01c", "KEYS\x01TAGS",
              "\x02UNIQ_KEY\x01d", "\x02TRAN_MSG\x01true")
    for _ in range(3000):
        text = "".join(source.choices(pieces, k=source.randrange(7)))
        plain_text = property_builder.plain(text)
        if plain_text is not None:
            plain += 1
            stored, tags, key = plain_text
            properties = props.parse(stored)
            assert stored == property_builder._stored(text), text
            assert (tags, key) == (properties.get("TAGS"), properties.get("UNIQ_KEY")), text
            assert "TRAN_MSG" not in properties, text
            assert writing._delay_level(properties) <= 0, text
            assert not writing._has_other_rows(properties), text
    assert plain > 300
