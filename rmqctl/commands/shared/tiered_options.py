"""Options of commands on tiers: the location of the tier, and the local store of its broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.app.option_groups import OptionGroup, pick
from rmqctl.commands.shared.options import complete_folders, parse_conf
from rmqctl.errors import UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import parse_offset

if TYPE_CHECKING:
    from rmqctl.ext.tiered.as_broker.router import Router
    from rmqctl.ext.tiered.tier import Tier
    from rmqctl.output import Output
    from rmqctl.store.broker_conf import BrokerConf
else:
    BrokerConf = object

_TIER = "Tier layout"
_BOTH = "Local store"

TierRoot = Annotated[str, typer.Argument(
    metavar="DIR", autocompletion=complete_folders, show_default=False,
    help="Tier root: the folder that contains the cluster folders (212d6b50_DefaultCluster/), a "
         "store with a tieredstore/ folder, or a URL for fsspec.")]
MetadataFile = Annotated[str | None, typer.Option(
    "--metadata", metavar="FILE", rich_help_panel=_TIER,
    help="The broker's tieredStoreMetadata.json, in the local root with tiered_index_file/ "
         "(default: beside DIR).")]
Broker = Annotated[str | None, typer.Option(
    "--broker", metavar="NAME", rich_help_panel=_TIER,
    help="Only what this broker (brokerName) uploaded.")]
TieredCluster = Annotated[str | None, typer.Option(
    "--cluster", metavar="NAME", help="Only the broker of this cluster.")]
TieredIndexSlots = Annotated[int | None, typer.Option(
    "--index-slots", metavar="N", min=1, rich_help_panel=_TIER,
    help="tieredStoreIndexFileMaxHashSlotNum (default: from an uploaded index file, else "
         "5000000).")]
TieredIndexMax = Annotated[int | None, typer.Option(
    "--index-max", metavar="N", min=2, rich_help_panel=_TIER,
    help="tieredStoreIndexFileMaxIndexNum (default 20000000).")]
TieredConf = Annotated[BrokerConf | None, typer.Option(
    "--broker-conf", metavar="FILE", parser=parse_conf, rich_help_panel=_TIER,
    help="broker.conf: names, sizes, and the metadata if DIR is its tieredStoreFilePath. Options "
         "override it.")]
AsBroker = Annotated[bool, typer.Option(
    "--as-broker", help="Answer exactly like a 5.3.3 broker, including its omissions and errors.")]


@dataclass(frozen=True, kw_only=True)
class TierOptions(OptionGroup):
    """The argument DIR, and the options for the layout of the tier."""

    root: TierRoot
    metadata: MetadataFile = None
    cluster: TieredCluster = None
    broker: Broker = None
    index_slots: TieredIndexSlots = None
    index_max: TieredIndexMax = None
    broker_conf: TieredConf = None

    def value(self) -> TierOptions:
        """Return the options; values that are not given are taken from broker.conf."""
        conf = self.broker_conf
        if conf is None:
            return self
        from_conf: dict[str, Any] = {
            **conf.tier, "metadata": conf.metadata if self._is_own else None}
        taken: dict[str, Any] = {
            name: from_conf.get(name) for name in ("metadata", "cluster", "broker", "index_slots",
                                                   "index_max") if getattr(self, name) is None}
        return replace(self, **taken)

    def warnings(self) -> Iterator[str]:
        """Yield warnings about settings of broker.conf that are unclear or belong to
        another tier.
        """
        conf = self.broker_conf
        if conf is None:
            return
        yield from (f"{conf.path}: {text}" for text in conf.notes)
        if self.metadata is None and not self._is_own and conf.tier_path is not None:
            yield (f"{conf.path} belongs to the tier in {conf.tier_path}, not to {self.root}, so "
                   "its metadata location is not used; pass --metadata")

    @property
    def _is_own(self) -> bool:
        """Return whether broker.conf names this tier. If it names another tier, its metadata
        location is not used: a copied broker.conf must not make rmqctl write to the original tier.
        """
        path = None if self.broker_conf is None else self.broker_conf.tier_path
        return path is not None and os.path.realpath(path) == os.path.realpath(self.root)

    def open(self) -> Tier:
        """Open the tier for reading, as a context manager.
        Raises: NotAStoreError; UsageError if the tier contains nothing of the named broker.
        """
        from rmqctl.ext.tiered.tier import Tier

        tier = Tier.open(self.root, self.metadata)
        if self.broker is not None:
            brokers = {queue.broker for queue in tier.contents.queues} | {
                owner for _, owner in tier.contents.indexes}
            if self.broker not in brokers:
                tier.close()
                raise UsageError(f"{tier.name} contains no data of broker {self.broker}; its "
                                 f"brokers: {', '.join(sorted(brokers)) or 'none'}")
        return tier


TierBroker = Annotated[TierOptions, pick("metadata broker broker_conf")]
TierIndex = Annotated[TierOptions, pick("metadata broker index_slots index_max broker_conf")]


@dataclass(frozen=True, kw_only=True)
class LocalOptions(OptionGroup):
    """Options for the broker's local store, which is queried together with the tier."""

    root: Annotated[str | None, typer.Option(
        "--local", metavar="STORE", autocompletion=complete_folders, rich_help_panel=_BOTH,
        help="The broker's local store, queried together with the tier as a broker does.")] = None
    strategy: Annotated[
        Literal["disable", "not-in-disk", "not-in-mem", "force"] | None, typer.Option(
            "--strategy", rich_help_panel=_BOTH,
            help="With --local: use the tier for nothing, for messages no longer on disk (default) "
                 "or in memory, or for all.")] = None
    in_memory: Annotated[int | None, typer.Option(
        "--in-memory-from", metavar="OFFSET", parser=parse_offset, rich_help_panel=_BOTH,
        help="With --strategy not-in-mem: the local log is in memory from this physical offset on "
             "(default: nothing).")] = None

    def check(self) -> None:
        """Raise UsageError if an option is given without the option that it requires."""
        if self.root is None and (self.strategy is not None or self.in_memory is not None):
            raise UsageError("--strategy and --in-memory-from require --local STORE")
        if self.in_memory is not None and self.strategy != "not-in-mem":
            raise UsageError("--in-memory-from requires --strategy not-in-mem")

    @contextmanager
    def router(self, out: Output, tier: Tier, broker: str | None) -> Iterator[Router]:
        """Yield a router that answers queries from the local store and the tier, as a broker does.
        Needs ``--local``. Raises: NotAStoreError, UsageError.
        """
        from rmqctl.broker.versions import version_for
        from rmqctl.broker.view import view_of
        from rmqctl.ext.tiered.as_broker.router import LocalSide, Router, Strategy
        from rmqctl.store import Store

        assert self.root is not None
        strategy = Strategy.of(self.strategy or "not-in-disk")
        if strategy is Strategy.NOT_IN_MEM and self.in_memory is None:
            out.note("assuming that no part of the local log is in memory: the tier answers for "
                     "all its messages (--in-memory-from changes this)")
        with Store.open(self.root) as store:
            local = LocalSide(view_of(store, "auto", version_for(5)), self.in_memory)
            yield Router(local, tier, strategy, broker=broker)
