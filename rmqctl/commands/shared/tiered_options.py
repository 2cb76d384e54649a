"""Options of the commands on tiers: where one lies, and the broker's local store beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.app.option_groups import OptionGroup, pick
from rmqctl.commands.shared.options import complete_folders, parse_conf
from rmqctl.errors import UsageError
from rmqctl.parse_values import parse_offset

if TYPE_CHECKING:
    from rmqctl.ext.tiered.as_broker.router import Router
    from rmqctl.ext.tiered.tier import Tier
    from rmqctl.output import Output
    from rmqctl.store.broker_conf import BrokerConf
else:
    BrokerConf = object

_TIER = "Where and how the tier lies"
_BOTH = "Together with a local store"

TierRoot = Annotated[str, typer.Argument(
    metavar="DIR", autocompletion=complete_folders, show_default=False,
    help="Tier root: the folder with the clusters' folders (212d6b50_DefaultCluster/), a store "
    "that has it as tieredstore/, or a URL for fsspec.")]
MetadataFile = Annotated[str | None, typer.Option(
    "--metadata", metavar="FILE", rich_help_panel=_TIER,
    help="The broker's tieredStoreMetadata.json, where it is not in config/ beside DIR. The index "
    "files that are not uploaded are looked for in tiered_index_file/ of the same local root.")]
Broker = Annotated[str | None, typer.Option(
    "--broker", metavar="NAME", rich_help_panel=_TIER,
    help="Only what this broker (brokerName) uploaded.")]
TieredCluster = Annotated[str | None, typer.Option(
    "--cluster", metavar="NAME", help="Only this cluster's broker.")]
TieredIndexSlots = Annotated[int | None, typer.Option(
    "--index-slots", metavar="N", min=1, rich_help_panel=_TIER,
    help="tieredStoreIndexFileMaxHashSlotNum, where no uploaded index file tells it "
    "(default 5000000).")]
TieredIndexMax = Annotated[int | None, typer.Option(
    "--index-max", metavar="N", min=2, rich_help_panel=_TIER,
    help="tieredStoreIndexFileMaxIndexNum (default 20000000).")]
TieredConf = Annotated[BrokerConf | None, typer.Option(
    "--broker-conf", metavar="FILE", parser=parse_conf, rich_help_panel=_TIER,
    help="The broker's own configuration (broker.conf): its names and sizes, and where its "
    "metadata lies if DIR is its tieredStoreFilePath; where no option says otherwise.")]
AsBroker = Annotated[bool, typer.Option(
    "--as-broker", help="Exactly what a 5.3.3 broker answers, with what it misses and mixes up.")]


@dataclass(frozen=True, kw_only=True)
class TierOptions(OptionGroup):
    """DIR, and how the tier in it lies."""

    root: TierRoot
    metadata: MetadataFile = None
    cluster: TieredCluster = None
    broker: Broker = None
    index_slots: TieredIndexSlots = None
    index_max: TieredIndexMax = None
    broker_conf: TieredConf = None

    def value(self) -> TierOptions:
        """With what the broker's configuration file says where no option does."""
        conf = self.broker_conf
        if conf is None:
            return self
        said: dict[str, Any] = {**conf.tier, "metadata": conf.metadata if self._is_own else None}
        taken: dict[str, Any] = {
            name: said.get(name) for name in ("metadata", "cluster", "broker", "index_slots",
                                              "index_max") if getattr(self, name) is None}
        return replace(self, **taken)

    def warnings(self) -> Iterator[str]:
        """What the broker's configuration file does not say clearly, or of another tier."""
        conf = self.broker_conf
        if conf is None:
            return
        yield from (f"{conf.path}: {text}" for text in conf.notes)
        if self.metadata is None and not self._is_own and conf.tier_path is not None:
            yield (f"{conf.path} is of the tier in {conf.tier_path}, not of {self.root}: where its "
                   "metadata lies is not taken from it (--metadata says it)")

    @property
    def _is_own(self) -> bool:
        """Whether the configuration file is that of this very tier, not of one it was copied
        from: what lies elsewhere is never written to on the word of a copied file.
        """
        path = None if self.broker_conf is None else self.broker_conf.tier_path
        return path is not None and os.path.realpath(path) == os.path.realpath(self.root)

    def open(self) -> Tier:
        """The tier, to be read: a context manager. NotAStoreError.

        UsageError where the broker that is named has nothing in it.
        """
        from rmqctl.ext.tiered.tier import Tier

        tier = Tier.open(self.root, self.metadata)
        if self.broker is not None:
            brokers = {queue.broker for queue in tier.found.queues} | {
                owner for _, owner in tier.found.indexes}
            if self.broker not in brokers:
                tier.close()
                raise UsageError(f"{tier.name}: nothing of a broker {self.broker} is in it; there "
                                 f"is {', '.join(sorted(brokers)) or 'none'}")
        return tier


TierBroker = Annotated[TierOptions, pick("metadata broker broker_conf")]
TierIndex = Annotated[TierOptions, pick("metadata broker index_slots index_max broker_conf")]


@dataclass(frozen=True, kw_only=True)
class LocalOptions(OptionGroup):
    """The broker's local store, which answers together with the tier."""

    root: Annotated[str | None, typer.Option(
        "--local", metavar="STORE", autocompletion=complete_folders, rich_help_panel=_BOTH,
        help="The broker's local store: it and the tier answer together, as a broker with both "
        "does.")] = None
    strategy: Annotated[
        Literal["disable", "not-in-disk", "not-in-mem", "force"] | None, typer.Option(
            "--strategy", rich_help_panel=_BOTH,
            help="tieredStorageLevel, with --local: who answers. disable: the local store. "
            "not-in-disk (default): the tier for what is not in the local log any more. "
            "not-in-mem: also for what is not in memory. force: the tier for everything.")] = None
    in_memory: Annotated[int | None, typer.Option(
        "--in-memory-from", metavar="OFFSET", parser=parse_offset, rich_help_panel=_BOTH,
        help="With --strategy not-in-mem: from this physical offset on the local log counts as in "
        "memory, which only the broker knows. Without it nothing does.")] = None

    def check(self) -> None:
        """UsageError where options for a local store are given without one."""
        if self.root is None and (self.strategy is not None or self.in_memory is not None):
            raise UsageError("--strategy and --in-memory-from need --local STORE: without a local "
                             "store only the tier can answer")
        if self.in_memory is not None and self.strategy != "not-in-mem":
            raise UsageError("--in-memory-from goes with --strategy not-in-mem")

    @contextmanager
    def router(self, out: Output, tier: Tier, broker: str | None) -> Iterator[Router]:
        """The local store (there must be one) and the tier as one. NotAStoreError, UsageError."""
        from rmqctl.broker.versions import version_for
        from rmqctl.broker.view import view_of
        from rmqctl.ext.tiered.as_broker.router import LocalSide, Router, Strategy
        from rmqctl.store import Store

        assert self.root is not None
        strategy = Strategy.of(self.strategy or "not-in-disk")
        if strategy is Strategy.NOT_IN_MEM and self.in_memory is None:
            out.note("nothing of the local log is taken to be in memory: the tier answers for all "
                     "it has (--in-memory-from tells otherwise)")
        with Store.open(self.root) as store:
            local = LocalSide(view_of(store, "auto", version_for(5)), self.in_memory)
            yield Router(local, tier, strategy, broker=broker)
