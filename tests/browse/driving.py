"""Drives the screen of ``rmqctl browse`` without a terminal, and reads what is on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Input
from textual.worker import WorkerCancelled

from rmqctl.ext.browse.app import Browser
from rmqctl.ext.browse.opened import BrowsedStore
from rmqctl.ext.browse.widgets import RowList
from rmqctl.parse_values import parse_time
from rmqctl.store import Store
from rmqctl.store.query.conditions import read_condition

NARROW, WIDE = (80, 24), (120, 40)


class Screen:
    """The screen, while it runs."""

    def __init__(self, app: Browser, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def rows(self) -> RowList:
        return self.app.main.query_one(RowList)

    @property
    def text(self) -> str:
        """What is on it, line by line."""
        strips = self.app.screen._compositor.render_strips()
        return "".join("".join(part.text for part in strip).rstrip() + "\n" for strip in strips)

    async def press(self, *keys: str) -> None:
        """Presses keys, one after the other, and waits for what comes of each; ``:text`` is put
        into the line that has the focus, and Enter pressed.
        """
        for key in keys:
            if key[0] == ":":
                line = self.app.focused
                assert isinstance(line, Input), line
                line.value = key[1:]
            self.app.simulate_key("enter" if key[0] == ":" else key)
            await self.settle()

    async def settle(self) -> None:
        """Waits until nothing is left to do but what comes by the clock: no thread reads, no
        message is on its way, all is laid out. (`Pilot` waits for times and numbers of rounds,
        which are too short on a machine with much else to do.)
        """
        await self._rest()
        while self.app.screen._update_timer._active.is_set():  # it waits for its turn to be drawn
            self.app.screen._on_timer_update()
            await self._rest()

    async def until(self, what: Callable[[], bool]) -> None:
        """Waits for what the clock or a thread that does not end brings about."""
        end = time.monotonic() + 60
        while not what():
            assert time.monotonic() < end, self.text
            await self.pilot.pause(0.02)

    async def _rest(self) -> None:
        """Until nobody else has a turn in the loop, nor will have one from a thread."""
        loop = asyncio.get_running_loop()
        while True:
            for worker in list(self.app.workers):
                with suppress(WorkerCancelled):
                    await worker.wait()
            await asyncio.sleep(0)
            if not loop._ready and all(worker.is_finished for worker in self.app.workers):
                return


def browse(root: Path, act: Callable[[Screen], Awaitable[None]],
           size: tuple[int, int] = NARROW) -> None:
    """Opens a store and acts on the screen. A defect of the program is raised."""
    async def main() -> None:
        opened = BrowsedStore(lambda: Store.open(root))
        app = Browser(opened, lambda text: read_condition(text, UTC),
                      lambda text: parse_time(text, tz=UTC))
        try:
            async with app.run_test(size=size) as pilot:
                screen = Screen(app, pilot)
                await screen.settle()
                await act(screen)
        finally:
            opened.close()

    asyncio.run(main())
