"""``rmqctl sql``: query the tables of stores with SQL, within this process."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from rmqctl import vfs
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.app.without_pandas import leave_pandas_out
from rmqctl.commands.shared.message_options import Decode, decoding_of, tell_undecoded
from rmqctl.commands.shared.options import Compacted, LayoutOptions, Out
from rmqctl.commands.shared.spark_options import (
    QueryFile,
    StoresAndQuery,
    named_stores,
    stores_and_query,
)
from rmqctl.errors import ExitCode, require
from rmqctl.output.units import counted


def command(
    *,
    arguments: StoresAndQuery,
    file: QueryFile = None,
    limit: Annotated[int | None, typer.Option(
        "--limit", metavar="N", min=0, help="At most N rows.")] = None,
    decode: Decode = None,
    view: Compacted = "auto",
    layout: Annotated[LayoutOptions, pick("commitlog_dirs broker_conf")],
    out: Out,
) -> None:
    """Query stores with SQL: tables messages, consumequeue, index, offsets and findings.

    Runs DuckDB's SQL in this process, changes nothing and reads no other files. `DESCRIBE messages`
    lists the columns; `store` is in every table. Times are UTC timestamps (epoch_ms() for
    milliseconds); body is binary (decode(body) for text). Filters on topic, queue_id,
    store_timestamp and physical_offset are applied while reading. --decode adds decoded, internal
    and decoded_as. `rmqctl pipeline sql` uses Spark.

        rmqctl sql STORE "SELECT topic, count(*) AS n FROM messages GROUP BY topic ORDER BY n DESC"
        rmqctl sql STORE "SELECT properties['KEYS'] AS k, body FROM messages WHERE topic = 'orders'"
        rmqctl sql STORE "SELECT count(*) FROM messages WHERE store_timestamp > '2024-06-21 19:52'"
    """
    require("duckdb", "pyarrow")
    leave_pandas_out()
    from rmqctl.commands.shared.store_warnings import warn_of_lost
    from rmqctl.sql.schema import MESSAGES, says
    from rmqctl.sql.session import QuerySession
    from rmqctl.store import Store
    from rmqctl.store.queue.compaction import SERVED, served_queues

    # Open every store once, to know the total size for the progress bar.
    names, text = stores_and_query(arguments, file)
    stores = named_stores(names)
    folders = layout.folders_of(stores)
    size = 0
    for store in stores:
        with Store.open(vfs.abspath(store), folders) as opened:
            size += opened.log.size
            if view == "auto" and says(text, MESSAGES):
                for topic in dict.fromkeys(topic for topic, _ in served_queues(opened)):
                    out.note(f"{topic}: {SERVED}")
    decoding = None if decode is None else decoding_of(decode)
    # Rows are printed while DuckDB computes them.
    with out.progress("reading the log", size) as progress, QuerySession(
            stores, folders, progress.advance, decoding, compacted=view == "auto") as session:
        answer = session.ask(text)
        rows = answer.rows if limit is None else islice(answer.rows, limit)
        out.rows(rows, answer.columns)
    # Report what the answer does not contain: damage, lost messages, undecoded bodies.
    if session.damaged:
        undecided = session.undecided
        out.warn(f"{counted(session.damaged, 'damaged range')} of the log skipped"
                 + (f", with {counted(undecided, 'undecided record')} (messages, or part of a "
                    "damaged message's body)" if undecided else "")
                 + "; `rmqctl verify` shows where")
    if says(text, MESSAGES):
        warn_of_lost(out, stores, folders, damaged=bool(session.damaged))
    if decoding is not None:
        tell_undecoded(out, decoding)
    if session.damaged:
        raise typer.Exit(int(ExitCode.FINDINGS))
