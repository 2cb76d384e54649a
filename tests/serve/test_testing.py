"""RocketMQ for the tests of others: the fixture, the context manager, the examples."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from rmqctl.errors import RmqctlError, UsageError
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.parse_values import parse_address
from rmqctl.testing import AsyncRocketMQ, RocketMQ
from tests.serve.running import empty_store
from tests.serve.test_clients import installed

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing"
JUNIT = ("jupiter/junit-jupiter-api", "jupiter/junit-jupiter-engine",
         "platform/junit-platform-commons", "platform/junit-platform-engine",
         "platform/junit-platform-launcher")
RUN = """
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;
import org.junit.platform.launcher.core.*;
import org.junit.platform.launcher.listeners.SummaryGeneratingListener;
class Run {
    public static void main(String[] args) {
        var heard = new SummaryGeneratingListener();
        LauncherFactory.create().execute(LauncherDiscoveryRequestBuilder.request()
                .selectors(selectClass(args[0])).build(), heard);
        heard.getSummary().printFailuresTo(new java.io.PrintWriter(System.out, true));
        heard.getSummary().printTo(new java.io.PrintWriter(System.out, true));
    }
}
"""


def junit() -> str:
    """The class path of JUnit 5, of the system or of Maven. Skips where there is none."""
    system = Path("/usr/share/java")
    paths = [system / f"{name.rpartition('/')[2]}.jar" for name in JUNIT]
    paths += [system / "opentest4j.jar", system / "apiguardian-api.jar"]
    maven = Path.home() / ".m2" / "repository" / "org"
    for version in ("5.14.4", "5.13.4", "5.12.2", "5.11.4", "5.10.3"):
        if all(path.exists() for path in paths):
            break
        paths = []
        for name in JUNIT:
            own = version.replace("5.", "1.", 1) if name.startswith("platform") else version
            paths.append(maven / "junit" / name / own / f"{name.rpartition('/')[2]}-{own}.jar")
        for name in ("opentest4j/opentest4j", "apiguardian/apiguardian-api"):
            paths += sorted((maven / name).glob("*/*.jar"))[-1:]
    if shutil.which("javac") is None or not all(path.exists() for path in paths):
        pytest.skip("there is no JUnit 5")
    return ":".join(map(str, paths))


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """The environment in which examples find this rmqctl."""
    path = tmp_path / "rmqctl"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqctl "$@"\n')
    path.chmod(0o755)
    return {**os.environ, "RMQCTL": str(path)}


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
        messages = server.messages(topic)
        assert [(message.queue_id, message.body, message.tags, message.keys)
                for message in messages] == [
                    (0, b"\0\xff", None, []), (1, b"one", "A", ["x", "y"])]
        assert [message.body for message in server.messages("many")] == [
            str(number).encode() for number in range(40)]
        with pytest.raises(UsageError, match=r"no such topic: mamy; similar: many"):
            server.messages("mamy")
        assert {topic, "many", "made"} <= set(server.topics())
        with pytest.raises(RmqctlError, match="code"):
            server.send(topic, "x", queue_id=9)
    assert gone(server.address)


@pytest.fixture(scope="module")
def server() -> Iterator[RocketMQ]:
    with RocketMQ("--topic", "made") as rocket_mq:
        yield rocket_mq


def test_waiting_for_messages(server: RocketMQ) -> None:
    topic = server.topic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.wait_for, topic, 3)
        for queue_id in (2, 0, 1):
            server.send(topic, str(queue_id), queue_id=queue_id)
        assert [record.body for record in waiting.result()] == [b"0", b"1", b"2"]
        late = pool.submit(server.wait_for, f"{topic}-made-later", 1)
        server.send(f"{topic}-made-later", "x")
        assert len(late.result()) == 1
    with pytest.raises(TimeoutError, match="3 of 4"):
        server.wait_for(topic, 4, timeout=0.05)
    with pytest.raises(UsageError, match="no such topic"):
        server.wait_for("nowhere", 1, timeout=0.05)


def test_how_far_a_group_is(server: RocketMQ) -> None:
    topic, other, group = server.topic(queues=1), server.topic(queues=1), uuid4().hex
    for topic_name in (topic, topic, topic, other):
        server.send(topic_name, "x")
    for ask in (server.lag, server.reset, server.dead_letters):
        with pytest.raises(UsageError, match="no such consumer group"):
            ask(group)
    with Client(parse_address(server.address)) as client:
        subscription = {"topic": other, "subString": "*", "tagsSet": [], "codeSet": [],
                        "subVersion": 1}
        client.ask("HEART_BEAT", {"clientID": group, "consumerDataSet": [
            {"groupName": group, "subscriptionDataSet": [subscription]}]})
        assert server.lag(group) == 1  # it has no consumer offsets yet
        client.ask("UNREGISTER_CLIENT", clientID=group, consumerGroup=group)
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup=group, topic=topic, queueId=0,
                   commitOffset=2)
    assert (server.lag(group), server.lag(group, topic), server.lag(group, other)) == (1, 1, 1)
    server.reset(group)
    assert server.lag(group, topic) == 3
    server.reset(group, topic, "latest")
    assert server.lag(group) == 0
    server.reset(group, to=server.messages(topic)[0].stored)
    assert server.lag(group) == 3
    with pytest.raises(UsageError, match="no such topic"):
        server.lag(group, "nowhere")


def test_delayed_messages_and_dead_letters(server: RocketMQ) -> None:
    topic, group = server.topic(), uuid4().hex
    assert server.delayed() == []
    server.send(topic, "by level", queue_id=2, delay_level=18)
    server.send(topic, "timed", queue_id=3, properties={"TIMER_DELAY_SEC": "3600"})
    assert [(message.topic, message.queue_id, message.body) for message in server.delayed()] == [
        (topic, 2, b"by level"), (topic, 3, b"timed")]
    assert server.messages(topic) == []
    server.send(topic, "given up")
    with Client(parse_address(server.address)) as client:
        client.ask("HEART_BEAT", {"clientID": "c", "consumerDataSet": [{"groupName": group}]})
        assert server.dead_letters(group) == []
        record = next(records(client.pull(topic, 0, 0).body))
        assert client.ask("CONSUMER_SEND_MSG_BACK", group=group, offset=record.physical_offset,
                          delayLevel=-1, originTopic=topic, maxReconsumeTimes=16).code == 0
    (dead,) = server.dead_letters(group)
    assert (dead.topic, dead.body) == (f"%DLQ%{group}", b"given up")


def test_refused_sends(server: RocketMQ) -> None:
    topic, other = server.topic(), server.topic()
    server.refuse_sends(2, topic=topic)
    server.send(other, "x")
    for _ in range(2):
        with pytest.raises(RmqctlError, match="code 14"):
            server.send(topic, "x")
    server.send(topic, "x")
    with server.refuse_sends(code=2):
        for topic_name in (topic, other, topic):
            with pytest.raises(RmqctlError, match="code 2, refused because the test asked"):
                server.send(topic_name, "x")
    server.send(topic, "x")
    assert (len(server.messages(topic)), len(server.messages(other))) == (2, 1)
    with pytest.raises(RmqctlError, match="times"):
        server.refuse_sends(-2)


def test_slow_and_paused_servers(server: RocketMQ) -> None:
    topic = server.topic()
    with Client(parse_address(server.address), 0.05) as client:
        with server.slow(60), pytest.raises(TimeoutError):
            client.ask("GET_ALL_TOPIC_CONFIG")
        with server.pause(), pytest.raises(TimeoutError):
            client.ask("GET_ALL_TOPIC_CONFIG")
    began = time.monotonic()
    with server.slow(0.01):
        server.send(topic, "x")
        assert time.monotonic() - began >= 0.01
    assert len(server.messages(topic)) == 1


def test_a_server_that_is_stopped_and_starts_again(server: RocketMQ) -> None:
    topic, address = server.topic(), server.address
    server.send(topic, "before")
    with Client(parse_address(address)) as client:
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="kept", topic=topic, queueId=0,
                   commitOffset=1)
        with server.stop():
            assert not answers(address)
            with pytest.raises(EOFError):
                client.receive()
    server.send(topic, "after")
    assert [message.body for message in server.messages(topic)] == [b"before", b"after"]
    assert (server.lag("kept"), server.address) == (1, address)
    with server.pause():
        server.stop()
    server.start()
    with server.refuse_sends(1):
        server.restart()
        with pytest.raises(RmqctlError, match="code 14"):
            server.send(topic, "x")


@pytest.mark.parametrize("state", ["pause", "stop"])
def test_a_server_ends_while_it_is_paused_or_stopped(state: str) -> None:
    with RocketMQ() as server:
        getattr(server, state)()
        process = server._process
    assert process is not None
    assert process.returncode == 0
    with pytest.raises(RmqctlError, match="only the program"):
        server.resume()


def test_the_same_with_asyncio() -> None:
    async def use() -> None:
        async with AsyncRocketMQ() as server:
            topic = await server.topic(queues=1)
            waiting = asyncio.create_task(server.wait_for(topic, 1))
            await server.send(topic, "x", tags="A")
            assert [message.tags for message in await waiting] == ["A"]
            async with await server.refuse_sends():
                with pytest.raises(RmqctlError, match="code 14"):
                    await server.send(topic, "x")
            await server.restart()
            assert len(await server.messages(topic)) == 1

    asyncio.run(use())
    assert {name for name in vars(RocketMQ) if not name.startswith("_")} <= {*dir(AsyncRocketMQ)}


def test_orders_that_come_together_are_done_one_by_one() -> None:
    names = ["pause", "resume", "resume", "pause", "stop", "stop", "slow", "start", "start"]
    with RocketMQ() as server:
        process = server._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write(b"".join(b'{"order": "%s"}\n' % name.encode() for name in names)
                            + b'no order\n{"order": "slow", "ms": "1"}\n{"order": "kill"}\n')
        process.stdin.flush()
        answers = [server._answers.get(timeout=20) for _ in range(len(names) + 3)]
        assert [answer["order"] for answer in answers] == [*names, None, None, None]
        server.topic()


def test_no_order_is_obeyed_without_temp(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rmqctl", "serve", "--writable", str(empty_store(
        tmp_path / "s")), "--listen", "127.0.0.1:0", "--end-with-stdin", "-o", "jsonl"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        user = RocketMQ()
        user.address = json.loads(process.stdout.readline())["ready"]
        process.stdin.write(b'{"order": "refuse_sends"}\n')
        process.stdin.flush()
        user.send("t", "x")
        out, _ = process.communicate()
        assert process.returncode == 0
        assert b'"order"' not in out


@pytest.mark.long
def test_a_program_that_is_checked_strictly_gets_types(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        "from rmqctl.testing import AsyncRocketMQ, Message, RocketMQ\n"
        "def use(server: RocketMQ) -> list[Message]:\n"
        "    with server.refuse_sends(1, topic='t'):\n        server.send('t', b'x')\n"
        "    lag: int = server.lag('g')\n    return server.wait_for('t', lag, timeout=1.0)\n"
        "async def use_later(server: AsyncRocketMQ) -> int:\n"
        "    reveal_type(await server.wait_for('t', 1))\n"
        "    async with await server.slow(0.1):\n        return await server.lag('g')\n"
        "async def wrong(server: AsyncRocketMQ) -> None:\n    await server.send(7, 'x')\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "use.py"], cwd=tmp_path,
                          capture_output=True, text=True)
    assert 'list[rmqctl.testing.Message]"' in done.stdout
    (error,) = (line for line in done.stdout.splitlines() if ": error: " in line)
    assert error.startswith("use.py:12")
    assert 'has incompatible type "int"; expected "str"' in error


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
    assert "3 passed" in done.stdout


@pytest.mark.long
def test_the_example_for_junit(tmp_path: Path, program: dict[str, str]) -> None:
    jars = junit()
    (tmp_path / "Run.java").write_text(RUN)
    subprocess.run(["javac", "-d", str(tmp_path), "-cp", jars, str(tmp_path / "Run.java"),
                    *map(str, EXAMPLES.glob("*.java"))], check=True)
    done = subprocess.run(["java", "-cp", f"{jars}:{tmp_path}", "Run", "OrdersTest"],
                          capture_output=True, text=True, env=program)
    assert "2 tests successful" in done.stdout, done.stdout + done.stderr
    assert " 0 tests failed" in done.stdout


@pytest.mark.long
@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_the_npm_package(program: dict[str, str]) -> None:
    done = subprocess.run(["node", "--test"], cwd=EXAMPLES / "npm", capture_output=True, text=True,
                          env=program)
    assert done.returncode == 0, done.stdout
    assert "# pass 1" in done.stdout


@pytest.mark.exhaustive  # a registry that does not answer takes two minutes
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
def test_the_example_for_jest(golden_base: Path, program: dict[str, str]) -> None:
    folder = golden_base.parent / "jest"
    installed(folder, ["npm", "install", "--silent", "--prefer-offline", "--no-audit", "--prefix",
                       str(folder), "jest@29", "ali-ons@3.12.0"])
    tests = shutil.copytree(EXAMPLES, folder / "tests", dirs_exist_ok=True)
    done = subprocess.run(["../node_modules/.bin/jest", "--forceExit", "orders.test.js"], cwd=tests,
                          capture_output=True, text=True, env=program)
    assert done.returncode == 0, done.stderr
    assert "2 passed" in done.stderr


@pytest.mark.parametrize(("args", "words"), [
    (["--temp", "--end-with-stdin"], "requires a pipe"),
    (["STORE", "--topic", "t"], "requires --writable"),
    (["--temp", "--topic", "a b"], "characters")])
def test_what_is_refused(args: list[str], words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "rmqctl", "serve", "--idle-exit", "1", "--listen",
                           "127.0.0.1:0", *args], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True)
    assert done.returncode != 0
    assert words in done.stderr
