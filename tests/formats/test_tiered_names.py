"""Names in a tier: the vectors of tiered.md §20.1, round trips, and anything else as a name."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.formats.tiered import names

VECTORS = {
    0: "cfcd208400000000000000000000", 381: "00ec53c400000000000000000381",
    762: "06997f0400000000000000000762", 2000: "08f90c1a00000000000000002000",
    2100: "2cad8fa400000000000000002100", 104857600: "40d473e300000000000104857600",
    1073741775: "1f329fef00000000001073741775", 2147483550: "dcb86ff200000000002147483550",
    4294937144: "b10da56800000000004294937144", 292: "1700002900000000000000000292",
    600000000: "a292986c00000000000600000000",
}
MOST = (1 << 63) - 1


@pytest.mark.parametrize(("base", "name"), VECTORS.items())
def test_segments_of_the_spec(base, name):
    assert names.build_segment(base) == name
    assert names.parse_segment(name) == (base, True)


def test_clusters_of_the_spec():
    assert names.cluster_folder("DefaultCluster") == "212d6b50_DefaultCluster"
    assert names.name_hash("TieredStorageDailyTest") == "161c08ff"
    assert names.parse_cluster("212d6b50_DefaultCluster") == ("DefaultCluster", True)
    assert names.parse_cluster("212d6b51_DefaultCluster") == ("DefaultCluster", False)


@given(st.integers(0, MOST))
def test_a_segment_comes_back(base):
    name = names.build_segment(base)
    assert len(name) == 28
    assert name[:8] == hashlib.md5(str(base).encode()).hexdigest()[:8]
    assert names.parse_segment(name) == (base, True)
    other = ("0" if name[0] != "0" else "1") + name[1:]
    assert names.parse_segment(other) == (base, False)


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_cluster_comes_back(cluster):
    assert names.parse_cluster(names.cluster_folder(cluster)) == (cluster, True)


@pytest.mark.parametrize("base", [-1, MOST + 1, -MOST])
def test_no_segment_starts_there(base):
    with pytest.raises(ValueError, match=str(base)):
        names.build_segment(base)


@pytest.mark.parametrize("name", [
    "", "cfcd2084", "cfcd20840000000000000000000", "cfcd2084000000000000000000000",
    "CFCD208400000000000000000000", "gfcd208400000000000000000000",
    "cfcd2084-0000000000000000000", "cfcd2084+0000000000000000000", "cfcd2084 0000000000000000000",
    "cfcd20840000000000000000000٣", "cfcd20840000000000_000000000", "cfcd2084000000000000000000.0",
    "cfcd208499999999999999999999", "cfcd208409223372036854775808", "00000000000000000000"])
def test_no_segment_name(name):
    assert names.parse_segment(name) is None


@pytest.mark.parametrize("name", [
    "", "_", "212d6b50", "212d6b50_", "212d6b5_x", "212d6b500_x", "212D6B50_x", "212d6b5g_x",
    "config", ".rmqctl", "_DefaultCluster"])
def test_no_cluster_name(name):
    assert names.parse_cluster(name) is None


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")) | st.text(
    st.sampled_from("0123456789abcdef_\udcff\ud800x"), max_size=40))
def test_any_text_as_a_name(text):
    segment, cluster = names.parse_segment(text), names.parse_cluster(text)
    assert segment is None or (segment[1] == (names.build_segment(segment[0]) == text))
    assert cluster is None or cluster[1] == (names.cluster_folder(cluster[0]) == text)
    assert len(names.name_hash(text)) == 8
    assert isinstance(names.is_filtered(text), bool)


def test_a_cluster_that_is_no_utf8():
    raw = b"caf\xe9"
    head = hashlib.md5(raw).hexdigest()[:8]
    name = f"{head}_{raw.decode('utf-8', 'surrogateescape')}"
    assert names.parse_cluster(name) == (raw.decode("utf-8", "surrogateescape"), True)


def test_paths():
    assert names.metadata_path("broker-a", "TopicA", 3) == "broker-a/TopicA/3"
    assert names.segment_path("DefaultCluster", "broker-a", "TopicA", 3, names.COMMIT_LOG, 381) == (
        "212d6b50_DefaultCluster/broker-a/TopicA/3/COMMIT_LOG/00ec53c400000000000000000381")
    assert names.KINDS.index(names.INDEX) == 2


@pytest.mark.parametrize("topic", [
    "", "  ", "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
    "rmq_sys_INDEX", "rmq_sys_REVIVE_LOG_c", "%LMQ%q", "C", "b", "BenchmarkTest",
    "OFFSET_MOVED_EVENT"])
def test_never_uploaded(topic):
    assert names.is_filtered(topic, "C", "b")


@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "%DLQ%g", "TBW1020", "RMQ_SYS_OTHER", "LMQ"])
def test_uploaded(topic):
    assert not names.is_filtered(topic, "C", "b")
    assert not names.is_filtered(topic)
