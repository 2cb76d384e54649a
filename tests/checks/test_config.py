"""Configuration files: which copy is good is told for every damage; what is legal is not."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.checks.preflight.preflight import preflight
from rmqctl.store.config import config as store_config
from rmqctl.store.store import Store
from tests.checks.small_checks import CLEAN, IDS, Log, brief, one_of, run, run_golden, trouble
from tests.conftest import GoldenFolder
from tests.support import damage, golden
from tests.support import tiny as tiny_stores

NAME = "topics.json"
MAIN, BACKUP = f"config/{NAME}", f"config/{NAME}.bak"
NO_LOG = Log(None, 0)


def check(root: Path, *, live: bool = False):
    return run("config", root, log=NO_LOG, live=live)


# -- legal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden_store", CLEAN, ids=IDS)
def test_no_finding_on_a_cleanly_closed_store(golden_store: golden.GoldenStore,
                                              golden: GoldenFolder) -> None:
    assert run_golden("config", golden_store, golden(golden_store.id)) == []


def test_integer_keys_without_quotes_are_what_brokers_write(tiny_base: tiny_stores.Tiny) -> None:
    assert b"{0:2,1:1}" in (tiny_base.root / "config/consumerOffset.json").read_bytes()
    assert check(tiny_base.root) == []


@pytest.mark.parametrize("gone", [[MAIN, BACKUP], [BACKUP], ["config"]])
def test_missing_files_are_legal(gone: list[str], root: Path) -> None:
    for name in gone:
        (damage.remove_folder if name == "config" else damage.remove)(root, name)
    assert check(root) == []


@pytest.mark.parametrize("name", ["plain_acl.yml", "broker.conf", "topics.json.tmp", "notes"])
def test_other_files_are_nobodys_business(name: str, root: Path) -> None:
    damage.add_file(root, f"config/{name}")
    (root / "config/rdb").mkdir()
    assert check(root) == []


def test_an_empty_backup_is_legal(root: Path) -> None:
    damage.empty_file(root, BACKUP)
    assert check(root) == []


# -- damage --------------------------------------------------------------------------------------


def test_every_cut_is_reported_with_the_good_copy(root: Path) -> None:
    whole = (root / MAIN).read_bytes()
    for size in range(0, len(whole) - 1, 3):
        damage.config(root, NAME, whole[:size])
        finding, what = one_of(check(root), root)
        # The place is where the text that was cut begins: the last token at most.
        assert what[:2] == ("config-backup", MAIN), finding
        assert size - 20 <= what[2] <= size
        assert f"{NAME}.bak is intact" in finding.detail
        assert finding.severity == "warning"


@pytest.mark.parametrize(("data", "offset"), [
    (b"", 0), (b"{", 1), (b"\x00" * 40, 0), (b"[]", 0), (b'{"a":}', 5), (b"topics", 0),
    (b'{"dataVersion":{"counter":1,', 28)])
def test_a_main_file_nobody_can_read(data: bytes, offset: int, root: Path) -> None:
    damage.config(root, NAME, data)
    finding, what = one_of(check(root), root)
    assert what == ("config-backup", MAIN, offset)
    damage.remove(root, BACKUP)
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("config-unreadable", MAIN, offset), "error")
    assert "a broker starts without its content" in finding.detail
    assert not _refused(root)
    damage.config(root, NAME, data, backup=b"{\x00")
    finding, what = one_of(check(root), root)
    assert what == ("config-unreadable", MAIN, offset)
    assert f"{NAME}.bak is damaged too" in finding.detail
    assert "a broker does not start with it" in finding.detail
    assert _refused(root)


def _refused(root: Path) -> list[str]:
    with Store.open(root) as store:
        return preflight(store, "4.9.3").broker.refusals


def test_only_the_backup_is_there(root: Path) -> None:
    damage.remove(root, MAIN)
    _, what = one_of(check(root), root)
    assert what == ("config-backup", MAIN, None)
    (root / BACKUP).write_bytes(b"{]")
    _, what = one_of(check(root), root)
    assert what == ("config-unreadable", BACKUP, 1)


def test_a_bad_backup_beside_a_good_file_is_reported(root: Path) -> None:
    (root / BACKUP).write_bytes(b'{"a":1')
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("config-oddity", BACKUP, 6), "info")


def test_trailing_garbage(root: Path) -> None:
    done = damage.config_trailing(root, NAME)
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("config-oddity", MAIN, done.offset), "warning")
    assert (finding.length, f"{NAME}.bak is intact" in finding.detail) == (done.length, True)


@pytest.mark.parametrize(("change", "offset", "severity"), [
    (lambda raw: b"\xef\xbb\xbf" + raw, 0, "info"),
    (lambda raw: raw[:1] + b'"x":1,"x":2,' + raw[1:], 7, "info"),
    (lambda raw: raw.replace(b'"order":false', b'"order\xff":false', 1), None, "warning")])
def test_readable_but_odd(change, offset: int | None, severity: str, root: Path) -> None:
    raw = change((root / MAIN).read_bytes())
    damage.config(root, NAME, raw)
    finding, what = one_of(check(root), root)
    at = raw.index(b"\xff") if offset is None else offset
    assert (what, finding.severity) == (("config-oddity", MAIN, at), severity)


def test_entries_of_the_wrong_shape(root: Path) -> None:
    damage.config(root, "consumerOffset.json", b'{"offsetTable":{"a@b":{0:"x"},"c@d":7}}')
    odd, emptied = check(root)
    assert brief([odd], root) == [("config-oddity", "config/consumerOffset.json", None)]
    assert odd.severity == "warning"
    assert emptied.category == "config-emptied"  # the next write replaces the good backup


def test_json_of_somebody_else_is_only_reported(root: Path) -> None:
    damage.add_file(root, "config/mine.json", b"{")
    finding, what = one_of(check(root), root)
    assert (what, finding.severity) == (("config-unreadable", "config/mine.json", 1), "info")


def test_several_files(root: Path) -> None:
    damage.config_both_bad(root, "consumerOffset.json")
    damage.config_empty(root, "delayOffset.json")
    damage.config_not_utf8(root, NAME)
    assert [what[:2] for what in brief(check(root), root)] == [
        ("config-unreadable", "config/consumerOffset.json"),
        ("config-backup", "config/delayOffset.json"), ("config-oddity", MAIN)]


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [damage.fifo, damage.directory, damage.symlink])
def test_no_regular_file(kind, root: Path) -> None:
    kind(root, MAIN)
    finding, what = one_of(check(root), root)
    assert what == ("file-unreadable", MAIN, None)
    assert f"{NAME}.bak is intact" in finding.detail


@pytest.mark.skipif(not damage.can_deny(), reason="root may read everything")
@pytest.mark.parametrize("file", [MAIN, "config"])
def test_permission_denied(file: str, root: Path) -> None:
    damage.unreadable(root, file)
    assert brief(check(root), root) == [("file-unreadable", file, None)]
    (root / file).chmod(0o755)


def test_a_terabyte_is_not_read(root: Path) -> None:
    damage.huge_sparse(root, MAIN)
    finding, what = one_of(check(root), root)
    assert (what[:2], finding.severity) == (("config-oddity", MAIN), "warning")


def test_a_running_broker_overwrites_in_place(root: Path, monkeypatch) -> None:
    """A file that is torn only for a moment is no finding while a broker runs."""
    whole = (root / MAIN).read_bytes()
    damage.config_truncated(root, NAME, 10)
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        (root / MAIN).write_bytes(whole)

    clock = SimpleNamespace(sleep=sleep)
    monkeypatch.setattr("rmqctl.checks.verify.config.time", clock)
    assert check(root, live=True) == []
    assert len(waited) == 1
    damage.config_truncated(root, NAME, 10)
    clock.sleep = waited.append
    assert [what[:2] for what in brief(check(root, live=True), root)] == [("config-backup", MAIN)]
    assert sum(waited) < 1


@settings(max_examples=120, derandomize=True)
@given(name=st.sampled_from([name for name in store_config.KINDS if name != "timercheck"]),
       main=st.binary(max_size=200), backup=st.none() | st.binary(max_size=60))
def test_random_bytes(name: str, main: bytes, backup: bytes | None,
                      tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / f"random-config-{os.getpid()}-{threading.get_ident()}"
    (folder / "config").mkdir(parents=True, exist_ok=True)
    for file in (folder / "config").iterdir():
        file.unlink()
    (folder / "config" / name).write_bytes(main)
    if backup is not None:
        (folder / "config" / f"{name}.bak").write_bytes(backup)
    findings = check(folder)
    assert trouble(findings) or main.strip()
    for finding in findings:
        assert finding.offset is None or 0 <= finding.offset <= max(len(main), len(backup or b""))


def test_a_file_too_large_to_read_is_a_finding(tiny, rmqctl):
    """Nobody knows what is in it: no store is called sound for that."""
    path = tiny.root / "config" / "topics.json"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.truncate(path, (64 << 20) + 1)
    answer = rmqctl("verify", tiny.root, "--only", "config", "-o", "json").expect(1).json()
    finding = next(reported_finding for reported_finding in answer["findings"]
                   if str(reported_finding["file"]).endswith("config/topics.json"))
    assert (finding["category"], finding["severity"]) == ("config-oddity", "warning")
    assert "67108865 bytes" in finding["detail"]
