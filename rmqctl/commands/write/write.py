"""``rmqctl write``: append one message as a broker would."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import WriteOutside
from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.commands.shared.engine_options import PUT, EngineOptions
from rmqctl.commands.shared.options import DryRun, Out, RequiredTopic, StoreOptions
from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.output.units import count_text, time_text
from rmqctl.parse_values import parse_integer, parse_property

if TYPE_CHECKING:
    from rmqctl.broker.settings import Host, Settings
    from rmqctl.engine.put.message import Outgoing
    from rmqctl.output import Human

_TRANSACTIONS = {"prepared": 0x4, "commit": 0x8, "rollback": 0xC}


def command(
    *,
    topic: RequiredTopic,
    queue: Annotated[int, typer.Option("--queue", "-i", metavar="N", help="Queue id.")] = 0,
    body: Annotated[str | None, typer.Option(
        "--body", metavar="TEXT", help="Body as UTF-8 text.")] = None,
    body_file: Annotated[str | None, typer.Option(
        "--body-file", metavar="FILE", help="File with the body; - is stdin.")] = None,
    tag: Annotated[str | None, typer.Option(
        "--tag", metavar="TAG", help="Tag (property TAGS).")] = None,
    key: Annotated[list[str] | None, typer.Option(
        "--key", "-k", metavar="KEY", help="Key; repeatable.")] = None,
    properties: Annotated[list[str] | None, typer.Option(
        "--property", metavar="NAME=VALUE", help="Property; repeatable.")] = None,
    delay_level: Annotated[int | None, typer.Option(
        "--delay-level", metavar="N", min=0, help="Delay level (property DELAY).")] = None,
    flag: Annotated[int, typer.Option(
        "--flag", metavar="N", parser=parse_integer, help="Client flag.")] = 0,
    sys_flag: Annotated[int, typer.Option(
        "--sys-flag", metavar="N", parser=parse_integer,
        help="sysFlag bits, decimal or 0x…; address bits are set from the hosts.")] = 0,
    transaction: Annotated[Literal["prepared", "commit", "rollback"] | None, typer.Option(
        "--transaction", help="Transaction type, set in the sysFlag.")] = None,
    prepared_offset: Annotated[int, typer.Option(
        "--prepared-offset", metavar="OFFSET", min=0,
        help="preparedTransactionOffset of a commit or rollback.")] = 0,
    born_host: Annotated[str | None, typer.Option(
        "--born-host", metavar="HOST:PORT",
        help="Address of the sender [default: 127.0.0.1:0]")] = None,
    store_host: Annotated[str | None, typer.Option(
        "--store-host", metavar="HOST:PORT",
        help="The broker's address, part of the message id [default: 127.0.0.1:10911]")] = None,
    auto_create_topic: Annotated[bool, typer.Option(
        "--auto-create-topic", help="Add an unknown topic to config/topics.json, as a broker "
                                    "does.")] = False,
    engine: Annotated[EngineOptions, pick(PUT, flush="sync")],
    write_outside: WriteOutside = None,
    dry_run: DryRun = False,
    store: StoreOptions,
    out: Out,
) -> None:
    """Append one message as a broker would; no broker may run on the store.

    Runs a broker's whole put path: checks, delay rewrite, encoding, log (with END_OF_FILE record
    and next file), consume queue and index, flush, checkpoint. Prints the broker's answer. A
    rejected message gets its status and exit code 6, and nothing is written.

        rmqctl write STORE --topic orders --body 'hello' --tag A --key order-17
    """
    from rmqctl.engine.input.append_stream import open_session
    from rmqctl.formats.local.message import HOST_BITS
    from rmqctl.formats.local.properties import SCHEDULE_TOPIC
    from rmqctl.formats.local.sysflag import has_consume_queue_row

    # Build the message from the options.
    payload = _body(body, body_file)
    settings = engine.settings(store, PUT)
    if transaction is not None:
        sys_flag |= _TRANSACTIONS[transaction]
    message = _message(settings, topic, payload, _properties(properties, tag, key, delay_level))
    message.queue_id, message.flag, message.sys_flag = queue, flag, sys_flag & ~HOST_BITS
    message.prepared_transaction_offset = prepared_offset
    message.born_host, message.store_host = _host(born_host, "--born-host"), _host(
        store_host, "--store-host")
    # Put the message; a signal waits until this is complete.
    with DeferredSignals(), open_session(store.root, settings, store.folders, dry_run=dry_run,
                                auto_create_topic=auto_create_topic,
                                outside=write_outside or ()) as session:
        for note in session.notes:
            out.note(note)
        result = session.put([message])[0]
    # Note what a broker will do with it.
    if session.unknown:
        out.note(f"config/topics.json does not contain {topic}: a broker rejects clients that "
                 "use it (--auto-create-topic adds it)")
    if dry_run:
        out.note("dry run: nothing was written")
    if result.stored and _is_delayed(message):
        out.note(f"delayed: the message waits in {SCHEDULE_TOPIC} until a broker delivers it")
    document = result.as_dict()
    has_row = has_consume_queue_row(message.sys_flag)
    out.document(document, lambda page: _show(page, document, has_row=has_row))
    if not result.stored:
        raise RefusedError(f"{result.status}: {result.reason}; nothing was written")


def _show(page: Human, result: dict[str, Any], *, has_row: bool) -> None:
    """Show the stored message. Nothing is shown for a rejected message, because the error line is
    enough.
    """
    if result["physical_offset"] is None:
        return
    page.pairs({
        "status": result["status"],
        "message id": result["msg_id"],
        "physical offset": f"{result['physical_offset']} ({count_text(result['wrote_bytes'])} "
        "bytes)",
        "queue offset": result["queue_offset"] if has_row
        else "none (this transaction type has no consume queue entry)",
        "stored": time_text(result["store_timestamp"]),
    })


def _is_delayed(message: Outgoing) -> bool:
    from rmqctl.formats.local import properties as props
    from rmqctl.formats.local.delay import delay_level_of
    from rmqctl.formats.local.sysflag import has_consume_queue_row

    return has_consume_queue_row(message.sys_flag) and delay_level_of(
        props.parse(message.properties)) > 0


def _body(text: str | None, file: str | None) -> bytes:
    if (text is None) == (file is None):
        raise UsageError("pass either --body TEXT or --body-file FILE")
    if text is not None:
        return os.fsencode(text)
    assert file is not None
    try:
        with open(0 if file == "-" else file, "rb", closefd=file != "-") as source:
            return source.read()
    except OSError as error:
        raise StoreIOError.from_oserror(error, file, "read") from None


def _properties(given: list[str] | None, tag: str | None, keys: list[str] | None,
                delay_level: int | None) -> dict[str, str]:
    properties = dict(parse_property(pair) for pair in given or ())
    shorthand: dict[str, Any] = {"TAGS": tag, "KEYS": " ".join(keys) if keys else None,
                                 "DELAY": delay_level}
    for name, value in shorthand.items():
        if value is not None:
            properties[name] = str(value)
    return properties


def _message(settings: Settings, topic: str, body: bytes, properties: dict[str, str]) -> Outgoing:
    from rmqctl.engine.put.ingest import prepare, unique_ids
    from rmqctl.engine.put.message import Outgoing

    try:
        return Outgoing(topic, body, prepare(properties, settings, unique_ids()))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _host(text: str | None, option: str) -> Host | None:
    from rmqctl.formats.local.message import host_bytes

    if text is None:
        return None
    try:
        return host_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option}: expected HOST:PORT, got {text!r} ({error})") from None
