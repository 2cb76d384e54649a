"""Options of commands that write to a store: the configuration of the store's broker.

A value that is not given comes from ``.rmqctl/store.json``, the store's files, or a broker's
defaults, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.broker.versions import profile_note, release_of
from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.options import StoreOptions
from rmqctl.errors import RefusedError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import parse_size, parse_watermark

if TYPE_CHECKING:
    from rmqctl.broker.settings import Settings

_BROKER = "The broker's configuration"
_WRITING = "Commitlog writing"


@dataclass(frozen=True, kw_only=True)
class EngineOptions(OptionGroup):
    """Options for the configuration of the store's broker; field names are those of `Settings`."""

    flush: Annotated[Literal["async", "sync"], typer.Option(
        "--flush", rich_help_panel=_BROKER,
        help="sync: acknowledge a message once it is on disk; async: flush in the background, a "
             "broker's default.")] = "async"
    mapped: Annotated[bool, typer.Option(
        "--mapped", rich_help_panel=_WRITING,
        help="Write through a memory map, as a broker does, instead of positional writes.")] = False
    warm: Annotated[bool, typer.Option(
        "--warm", rich_help_panel=_WRITING,
        help="With --mapped: touch, lock (mlock) and announce (madvise) the pages of a new file.",
    )] = False
    preallocate: Annotated[bool, typer.Option(
        "--preallocate", rich_help_panel=_WRITING,
        help="Create the next file ahead of time, in the background.")] = False
    transient_pool: Annotated[int, typer.Option(
        "--transient-pool", metavar="N", min=0, rich_help_panel=_WRITING,
        help="Collect messages in N file-sized buffers first (transientStorePoolEnable; not with "
             "--flush sync).")] = 0
    cluster: Annotated[str | None, typer.Option(
        "--cluster", metavar="NAME", rich_help_panel=_BROKER,
        help="brokerClusterName  [default: DefaultCluster]")] = None
    version: Annotated[str | None, typer.Option(
        "--broker-version", metavar="VERSION", parser=release_of, rich_help_panel=_BROKER,
        help="Release (4.0.0 to 5.4.0) whose rules and format to follow (default: detected from "
             "the store).")] = None
    lmq: Annotated[bool | None, typer.Option(
        "--lmq/--no-lmq", help="enableLmq: light message queues.", rich_help_panel=_BROKER,
    )] = None
    multi_dispatch: Annotated[bool | None, typer.Option(
        "--multi-dispatch/--no-multi-dispatch", rich_help_panel=_BROKER,
        help="enableMultiDispatch: also put a message into the queues that its "
             "INNER_MULTI_DISPATCH names.")] = None
    consumequeue_ext: Annotated[bool | None, typer.Option(
        "--consumequeue-ext/--no-consumequeue-ext", rich_help_panel=_BROKER,
        help="enableConsumeQueueExt: write ConsumeQueueExt units.")] = None
    append_properties_crc: Annotated[bool | None, typer.Option(
        "--append-crc/--no-append-crc", rich_help_panel=_BROKER,
        help="enabledAppendPropCRC: append a CRC of the record to its properties (5.2.0+).",
    )] = None
    message_delay_level: Annotated[str | None, typer.Option(
        "--delay-levels", metavar="LEVELS", rich_help_panel=_BROKER,
        help="messageDelayLevel: delays of the levels, such as '1s 5s 10s 1m'.")] = None
    consumequeue_ext_file_size: Annotated[int | None, typer.Option(
        "--consumequeue-ext-file-size", metavar="SIZE", parser=parse_size, rich_help_panel=_BROKER,
        help="Size of a ConsumeQueueExt file (mappedFileSizeConsumeQueueExt).")] = None
    batch_consumequeue_file_size: Annotated[int | None, typer.Option(
        "--batch-consumequeue-file-size", metavar="SIZE", parser=parse_size,
        help="Size of a batch consume queue file (5.x).", rich_help_panel=_BROKER)] = None
    disk_watermark: Annotated[float | None, typer.Option(
        "--disk-watermark", metavar="PERCENT", parser=parse_watermark, rich_help_panel=_BROKER,
        help="Reject messages while the log's disk is fuller than this; 100% disables the check  "
             "[default: 90%]")] = None

    def remarks(self) -> Iterator[str]:
        """Yield a note if rmqctl has no profile for the given broker version. The note names the
        version whose profile is used.
        """
        note = profile_note(self.version) if self.version else None
        if note is not None:
            yield note

    def given(self, names: str) -> dict[str, Any]:
        """Return the fields ``names`` (separated by spaces) with their values; None: not given."""
        return {name: getattr(self, name) for name in names.split()}

    def settings(self, store: StoreOptions, names: str, **more: Any) -> Settings:
        """Return the settings for writing to ``store``. ``names``: fields to use, separated by
        spaces. ``more``: other fields, which have priority.
        Raises: the errors of `settings_from`.
        """
        return settings_from(store.root, commitlog_dirs=store.folders,
                             sizes_given=bool(store.sizes.conf.path),
                             **store.over_conf({**self.given(names), **more}))


#: Options of `EngineOptions` for commands that write single messages.
PUT = ("flush cluster version lmq multi_dispatch consumequeue_ext append_properties_crc "
       "disk_watermark")
#: Options of `EngineOptions` for commands that write many messages.
PUT_MANY = ("flush mapped warm preallocate transient_pool cluster version lmq multi_dispatch "
            "consumequeue_ext append_properties_crc disk_watermark")
#: Options of `EngineOptions` for commands that create an empty store.
NEW_STORE = ("version batch_consumequeue_file_size consumequeue_ext consumequeue_ext_file_size "
             "lmq multi_dispatch append_properties_crc message_delay_level")
#: Options of `EngineOptions` for commands that rebuild consume queues or the index from the log.
REBUILD = ("version consumequeue_ext lmq multi_dispatch message_delay_level "
           "consumequeue_ext_file_size batch_consumequeue_file_size")


def settings_from(store_root: str, *, commitlog_dirs: Iterable[str] | None = None,
                  files: bool = True, sizes_given: bool = False, **given: Any) -> Settings:
    """Return the settings for writing to a store.

    ``given``: fields of `Settings`, None if not given. ``sizes_given``: whether a broker.conf
    determines the form of the consume queues. For ``files``, priorities and other errors see
    `rmqctl.broker.settings.resolve`.

    Raises: NotAStoreError; UnsupportedError for a structure that cannot be written; RefusedError if
    the form of the consume queues or the size of the index is unknown.
    """
    from rmqctl.broker.queue_form import require_proven
    from rmqctl.broker.settings import resolve
    from rmqctl.store import Store

    with Store.open(store_root, commitlog_dirs or ()) as store:
        alone = not files and all(map(store.layout.reads, ("commitlog", "consumequeue")))
        store.layout.require_writable(store_root, ("config",) if alone else None)
        if files and not (sizes_given or given.get("consumequeue_file_size")):
            require_proven(store)
        config = resolve(store, given, files=files)
    if config.index_unknown:
        raise RefusedError(f"{config.index_unknown}; nothing was written, because writing would "
                           "ruin the index")
    return config.settings


def new_settings(**given: Any) -> Settings:
    """Return the settings of a new store: the given values, else a broker's defaults."""
    from rmqctl.broker.settings import Settings

    return Settings(**{name: value for name, value in given.items() if value is not None})
