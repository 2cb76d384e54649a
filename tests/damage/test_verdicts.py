"""Verdicts on whole records: the first one stays, until another record is there."""

from __future__ import annotations

from rmqctl.damage.verdicts import OF_ACTION, Condemned, Evidence, LogRange, Remedy, Verdict


def test_the_first_verdict_stays_until_acquitted() -> None:
    condemned = Condemned()
    assert condemned.add([10, 20], Verdict.STALE)
    assert not condemned.add([20])
    assert condemned.add([20, 30], Verdict.UNDECIDED)
    assert condemned.verdicts == {10: Verdict.STALE, 20: Verdict.STALE, 30: Verdict.UNDECIDED}
    before = condemned.copy()
    condemned.acquit([10, 40])
    assert condemned.of(Verdict.STALE, Verdict.UNDECIDED) == {20, 30}
    assert condemned.add([10])
    assert condemned.verdicts[10] is Verdict.DAMAGED
    assert before.verdicts[10] is Verdict.STALE


def test_a_place_as_the_document_has_it() -> None:
    place = LogRange(5, 9, Verdict.CONTRADICTED, (Evidence("index", "the index has other keys"),),
                     OF_ACTION["put back"])
    assert place.as_dict() == {
        "start": 5, "end": 9, "verdict": "contradicted", "remedy": "moved_back",
        "evidence": [{"source": "index", "detail": "the index has other keys"}]}
    assert {*OF_ACTION.values()} == {*Remedy} - {Remedy.NONE}
