"""RocketMQ for the tests of others: the fixture, the context manager, the examples."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.remoting.client import Client
from rmqctl.parse_values import parse_address
from rmqctl.testing import RocketMQ

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing"
JARS = [Path("/usr/share/java") / f"{name}.jar" for name in (
    "junit-jupiter-api", "junit-jupiter-engine", "junit-platform-commons", "junit-platform-engine",
    "junit-platform-launcher", "junit-platform-console", "junit-platform-reporting", "opentest4j",
    "apiguardian-api", "picocli")]


def answers(address: str) -> bool:
    try:
        Client(parse_address(address), 5).close()
    except OSError:
        return False
    return True


def gone(address: str) -> bool:
    end = time.monotonic() + 15
    while answers(address) and time.monotonic() < end:
        time.sleep(0.05)
    return not answers(address)


def test_what_is_sent_is_there_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQCTL_STORE", "/nowhere")  # the user's own defaults are not the server's
    with RocketMQ("--topic", "made") as server:
        topic = server.topic(queues=2)
        server.send(topic, "one", tags="A", keys="x y", queue_id=1)
        server.send(topic, b"\0\xff")
        for number in range(40):
            server.send("many", str(number))
        found = server.messages(topic)
        assert [(each.queue_id, each.body, each.tags, each.keys) for each in found] == [
            (0, b"\0\xff", None, []), (1, b"one", "A", ["x", "y"])]
        assert [each.body for each in server.messages("many")] == [
            str(number).encode() for number in range(40)]
        assert server.messages("none") == []
        assert {topic, "many", "made"} <= set(server.topics())
        with pytest.raises(RmqctlError, match="code"):
            server.send(topic, "x", queue_id=9)
    assert gone(server.address)


def test_a_server_that_cannot_start_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RmqctlError, match="did not start"), RocketMQ("--no-such-option"):
        pass
    assert "no-such-option" in capfd.readouterr().err


def test_it_ends_with_a_program_that_is_killed() -> None:
    code = ("import rmqctl.testing\n"
            "with rmqctl.testing.RocketMQ() as server: print(server.address, flush=True); input()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert answers(address)
        process.send_signal(signal.SIGKILL)
    assert gone(address)


def test_without_pytest_there_is_the_context_manager() -> None:
    code = ("import sys; sys.modules['pytest'] = None; import rmqctl.testing as t; "
            "print(hasattr(t, 'rocketmq'), t.RocketMQ)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False <class")


def test_the_fixture_is_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["rmqctl.testing"]\n')
    text = (EXAMPLES / "test_orders.py").read_text()
    (tmp_path / "test_orders.py").write_text(text.replace("RocketMQ, rocketmq", "RocketMQ"))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           "--rootdir", str(tmp_path), str(tmp_path)], capture_output=True,
                          text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.long
@pytest.mark.skipif(shutil.which("javac") is None or not JARS[0].exists(), reason="no JUnit 5")
def test_the_example_for_junit(tmp_path: Path) -> None:
    program = tmp_path / "rmqctl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqctl "$@"\n')
    program.chmod(0o755)
    jars = ":".join(map(str, JARS))
    subprocess.run(["javac", "-d", str(tmp_path), "-cp", jars, str(EXAMPLES / "OrdersTest.java")],
                   check=True)
    done = subprocess.run(
        ["java", "-cp", f"{jars}:{tmp_path}", "org.junit.platform.console.ConsoleLauncher", "-c",
         "OrdersTest"], capture_output=True, text=True,
        env={**os.environ, "RMQCTL": str(program)})
    assert done.returncode == 0, done.stdout
    assert "1 tests successful" in done.stdout


@pytest.mark.parametrize(("args", "words"), [
    (["--temp", "--end-with-stdin"], "no pipe"),
    (["STORE", "--topic", "t"], "takes any"),
    (["--temp", "--topic", "a b"], "characters")])
def test_what_is_refused(args: list[str], words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "rmqctl", "serve", "--idle-exit", "1", "--listen",
                           "127.0.0.1:0", *args], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True)
    assert done.returncode != 0
    assert words in done.stderr
