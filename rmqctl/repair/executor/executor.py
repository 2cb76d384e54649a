"""The one executor of all plans (architecture: plan, then apply).

A repair is staged, committed by its journal, carried out step by step, and recorded as done. A kill
before the commit leaves the old store. After a later kill, the next `Repair` of the store completes
the repair, or `Repair.undo` undoes it. Nothing is deleted from the store.

A root under repair is locked by a file in it. A broker that uploads to a tier locks only its own
root. So a repair of a tier also locks the roots of its brokers, which are noted below ``.rmqctl``
for a later completion or undo.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from rmqctl.errors import InternalError, RefusedError, StoreIOError
from rmqctl.files.bounds import WritableFolders, stores_around
from rmqctl.files.durable import STAGING, make_folders, open_file, publish
from rmqctl.files.lock import StoreLock
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.repair.executor import undo as undoing
from rmqctl.repair.executor.apply_step import ChangedError, StepApplier
from rmqctl.repair.executor.check_plan import is_fulfilled
from rmqctl.repair.executor.journal import (
    FOLDER,
    Journal,
    backup_folder,
    check_actions_log,
    commit,
    is_committed,
    load,
    note_actions,
    pending,
    refuse_damaged,
    set_state,
    state_of,
)
from rmqctl.repair.executor.prune import forget, forget_note
from rmqctl.repair.executor.relocated import interrupted, load_here, moved_to, refuse_unknown
from rmqctl.repair.executor.staging import Staging, clear, clear_abandoned
from rmqctl.repair.executor.undo import Progress, Undone
from rmqctl.repair.plan import Plan
from rmqctl.repair.targets import refuse_foreign_links
from rmqctl.store.repair_losses import ACTIONS_LOG, PRUNED
from rmqctl.store.store import Store

SCRATCH = "scratch"
ROOTS_NOTE = "held.json"
_WRITTEN = ("lock", os.path.join(STAGING, FOLDER), os.path.join(STAGING, SCRATCH),
            os.path.join(STAGING, ACTIONS_LOG), os.path.join(STAGING, ROOTS_NOTE), PRUNED)
"""The targets that every repair writes to."""


@dataclass(frozen=True, slots=True)
class Applied:
    """An applied plan.

    * ``id``: its id; empty if nothing was left to do (``already``).
    * ``steps``: number of steps.
    * ``backup``: folder (relative to the store root) with the files moved aside.
    * ``undone``: whether an interrupted undo was completed instead of a repair.
    * ``outside``: the folders outside the root that were written to. The user must name them again
      for `undo`.
    """

    id: str
    steps: int
    backup: str
    already: bool = False
    undone: bool = False
    outside: tuple[str, ...] = ()


class Repair:
    """A context manager that holds the lock of a store for repairs.

    Entering takes the lock, or raises StoreHeldError. It then completes an interrupted repair,
    unless ``finish`` is False; `finished` is the result, or None. RefusedError is raised if that
    repair cannot be completed, because something else has changed the store since.

    * ``wall_clock``: function that returns the time in epoch ms.
    * ``progress``: called with 1 after every step.
    * ``is_root``: for a root that is not a store (a tier), a function that raises if it is missing.
    * ``broker_roots``: further roots to lock for a tier (default: those that were noted).
    * ``named``: folders outside of the root that the user named in this command. No other folder
      outside is written to, and the stores that contain these folders are locked as well.
    * ``complete``: the id of an interrupted repair to complete, even if the store's path or the
      stamps of its files have changed (`Interrupted.question`).
    """

    def __init__(self, root: str, command: str, wall_clock: Callable[[], int] | None = None,
                 progress: Progress | None = None, *, finish: bool = True,
                 broker_roots: Sequence[str] | None = None,
                 is_root: Callable[[str], object] | None = None,
                 named: Sequence[str] = (), complete: str | None = None) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self.command = command
        self.finished: Applied | None = None
        self._named = os.fspath(root)
        self._clock = wall_clock or now_ms
        self.progress: Progress = progress or (lambda _: None)
        self._finish = finish
        self._is_root = is_root or Store.open
        self._bounds = WritableFolders(self.root, named)
        self._complete_id = complete
        self._recover = "recover" if is_root is None else "tiered recover"
        self._lock = RootLocks(self.root, broker_roots, self._bounds.named)

    @property
    def scratch_folder(self) -> str:
        """Return the folder on the store's file system in which a plan is built; the caller creates
        it.
        """
        return os.path.join(self.root, STAGING, SCRATCH)

    def __enter__(self) -> Self:
        # A store can be repaired even if all its files were moved aside.
        if not os.path.isdir(os.path.join(self.root, STAGING)):
            self._is_root(self._named)
        for name in _WRITTEN:
            refuse_foreign_links(self.root, name)
        self._lock.acquire()
        try:
            clear_abandoned(self.root)
            if self._finish:
                self.finished = self._complete()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self._lock.release()
        except StoreIOError:
            if kind is None:
                raise

    # -- apply ----------------------------------------------------------------------------------

    def apply(self, plan: Plan) -> Applied:
        """Apply a plan.

        Raises: RefusedError if the store differs from what the plan assumes, StoreIOError if
        staging fails; the store is then unchanged. If a StoreIOError names the id of the repair,
        the repair is committed but not finished.
        """
        self._check_held()
        if (unfinished := pending(self.root)) is not None:
            raise RefusedError(f"repair {unfinished} was interrupted: complete it or undo it "
                               "first")
        if plan.empty or is_fulfilled(self.root, plan.steps):
            return Applied("", 0, "", already=True)
        check_actions_log(self.root)
        self._lock.note()
        staging = Staging(self.root, plan, self._clock(), self._bounds.named)
        try:
            journal = staging.stage()
            if not journal.records:
                clear(self.root, staging.id)
                return Applied("", 0, "", already=True)
            commit(self.root, journal)
        except BaseException as problem:
            if not is_committed(self.root, staging.id):
                clear(self.root, staging.id)
            elif isinstance(problem, StoreIOError):
                raise self._unfinished(staging.id, problem) from None
            raise
        return self._carry_out(journal, maybe=False)

    def _carry_out(self, journal: Journal, *, maybe: bool) -> Applied:
        with self._explained(journal.id):
            applier = StepApplier(self.root, journal, self._bounds.named)
            if maybe:
                # Check all steps before the first: better refuse than stop halfway again.
                for _, phase in applier.phases():
                    if isinstance(phase, ChangedError):
                        raise phase
            for record in journal.records:
                applier.forward(record)
                self.progress(1)
            note_actions(self.root, journal, "applied", self._clock(), maybe=maybe)
            set_state(self.root, journal.id, "applied", self._clock())
        outside = {os.path.dirname(applier.path(record)) for record in journal.records}
        own = WritableFolders(self.root)
        return Applied(journal.id, len(journal.records), backup_folder(journal.id), outside=tuple(
            sorted(folder for folder in outside if not own.contain(folder))))

    @contextmanager
    def _explained(self, repair_id: str) -> Iterator[None]:
        try:
            yield
        except StoreIOError as problem:
            raise self._unfinished(repair_id, problem) from None
        except OSError as error:
            raise self._unfinished(repair_id, StoreIOError.from_oserror(error)) from None
        except RefusedError as problem:
            raise RefusedError(
                f"repair {repair_id} was interrupted and cannot be completed: {problem}; `rmqctl "
                f"undo {self._named} {repair_id} --force` reverts the completed steps, `--abandon` "
                "leaves everything as it is") from None

    def _unfinished(self, repair_id: str, problem: StoreIOError) -> StoreIOError:
        return StoreIOError(
            f"{problem}; repair {repair_id} is not finished, but nothing is lost: run the command "
            f"again to complete it, or `rmqctl undo {self._named} {repair_id}` to revert it")

    # -- what an interrupted run left -----------------------------------------------------------

    def _complete(self) -> Applied | None:
        repair_id = pending(self.root)
        refuse_unknown(self._named, self._complete_id, repair_id)
        if repair_id is None:
            return None
        state, _ = state_of(self.root, repair_id)
        if state == "damaged":
            raise refuse_damaged(self._named, repair_id)
        interruption = interrupted(self.root, self._bounds.named)
        if interruption is not None and interruption.question and self._complete_id != repair_id:
            raise RefusedError(
                f"repair {repair_id} was interrupted, and {interruption.question}. Nothing was "
                f"changed. `rmqctl {self._recover} {self._named} --complete {repair_id} --apply` "
                f"completes it, `rmqctl undo {self._named} {repair_id}` reverts it")
        if state == "undoing":
            back = self._carry_back(repair_id, maybe=True)
            return Applied(back.id, back.steps, back.backup, undone=True)
        return self._carry_out(self._load(repair_id), maybe=True)

    def _load(self, repair_id: str, moved: Sequence[str] = ()) -> Journal:
        try:
            return load_here(self.root, repair_id, moved)[0]
        except StoreIOError as problem:
            if "damaged" in str(problem):
                raise refuse_damaged(self._named, repair_id) from None
            raise

    # -- undo -----------------------------------------------------------------------------------

    def undo(self, repair_id: str | None = None, *, force: bool = False,
             moved: Sequence[str] = ()) -> Undone:
        """Undo a repair (default: the newest); if it was interrupted, undo its completed steps.

        ``moved`` (texts ``OLD=NEW``): new paths of folders outside of a store that was moved or
        copied. ``force``: also restore files that have changed since the repair, and keep their
        changed versions below ``undone``.

        Raises: UsageError for an unknown id; RefusedError if a later repair changed the same files,
        or, without ``force``, if anything else has changed them since.
        """
        self._check_held()
        repair_id = undoing.choose(self.root, repair_id)
        state, _ = state_of(self.root, repair_id)
        unfinished = pending(self.root)
        if unfinished not in (None, repair_id):
            raise RefusedError(f"repair {unfinished} was interrupted: complete it or undo it "
                               "first")
        if state == "undone":
            return undoing.undone(load(self.root, repair_id), already=True)
        if state == "damaged":
            raise refuse_damaged(self._named, repair_id)
        journal = self._load(repair_id, moved)
        given = moved_to(self.root, repair_id, moved)
        self._lock.hold_around(given)
        named = [*self._bounds.named, *given]
        if state != "undoing" or moved:
            undoing.begin(self.root, journal.id, self._clock(), force=force, moved=moved,
                          named=named)
        return self._carry_back(repair_id, maybe=state == "undoing", named=named)

    def abandon(self, repair_id: str) -> None:
        """Give up an interrupted repair. Neither the store nor the kept files are changed.

        Raises: UsageError; RefusedError if no repair is interrupted.
        """
        self._check_held()
        repair_id = undoing.choose(self.root, repair_id)
        if pending(self.root) != repair_id:
            raise RefusedError(f"repair {repair_id} is not interrupted")
        set_state(self.root, repair_id, "abandoned", self._clock())

    def prune(self, repair_ids: Sequence[str], notes: Sequence[str] = ()) -> None:
        """Delete the files that repairs keep (see `prunable`); these repairs can no longer be
        undone.

        The notes of their losses are kept, except for the ids in ``notes`` (see `forgettable`).
        Raises: RefusedError while a repair is not finished; StoreIOError.
        """
        self._check_held()
        if (unfinished := pending(self.root)) is not None:
            raise RefusedError(f"repair {unfinished} was interrupted: complete it or undo it "
                               "first")
        for repair_id in repair_ids:
            forget(self.root, repair_id, note=repair_id in notes)
            self.progress(1)
        for repair_id in notes:
            forget_note(self.root, repair_id)

    def _carry_back(self, repair_id: str, *, maybe: bool, named: Sequence[str] = ()) -> Undone:
        try:
            return undoing.carry_on(self.root, repair_id, self._clock, self.progress, maybe=maybe,
                                    named=named or self._bounds.named)
        except (StoreIOError, OSError) as error:
            problem = error if isinstance(error, StoreIOError) else StoreIOError.from_oserror(error)
            raise StoreIOError(
                f"{problem}; the undo of repair {repair_id} is not finished, but nothing is lost: "
                f"run `rmqctl undo {self._named} {repair_id}` to continue") from None

    def _check_held(self) -> None:
        if not self._lock.held:
            raise InternalError("a repair needs the store's lock")


# -- who is kept out ------------------------------------------------------------------------------


class RootLocks:
    """The locks of a root, of further roots, and of the stores that contain folders in ``named``.

    ``broker_roots``: further roots of the broker (None: the recorded roots).
    """

    def __init__(self, root: str, broker_roots: Sequence[str] | None = None,
                 named: Sequence[str] = ()) -> None:
        self.root = root
        self._around = named
        self._given = broker_roots
        self._lock = StoreLock(root)
        self._more = ExitStack()

    @property
    def held(self) -> bool:
        return self._lock.held

    @property
    def broker_roots(self) -> list[str]:
        """Return the other roots to lock, as real paths; missing folders are skipped.

        A noted root counts only if it has a ``lock`` file: a file in the store that names a folder
        is no reason to create a lock there.
        """
        wanted = self._given
        if wanted is None:
            wanted = [root for root in noted_roots(self.root)
                      if os.path.lexists(os.path.join(root, "lock"))]
        own_root = os.path.realpath(self.root)
        return [root for root in dict.fromkeys(map(os.path.realpath, wanted))
                if root != own_root and os.path.isdir(root)]

    def acquire(self) -> None:
        """Take all locks or none. Raises: StoreHeldError, StoreIOError."""
        further = self.broker_roots
        with ExitStack() as stack:
            for root in (*further, *stores_around(self._around, (self.root, *further))):
                stack.enter_context(StoreLock(root, fill=self._given is not None))
            self._lock.acquire()
            self._more = stack.pop_all()

    def hold_around(self, folders: Sequence[str]) -> None:
        """Also lock the stores that contain the given folders. Raises: StoreHeldError."""
        held = (self.root, *self.broker_roots,
                *stores_around(self._around, (self.root, *self.broker_roots)))
        for root in stores_around(folders, held):
            self._more.enter_context(StoreLock(root))

    def release(self) -> None:
        try:
            self._lock.release()
        finally:
            self._more.close()

    def note(self) -> None:
        """Save the further roots, if any, for later runs. Raises: StoreIOError."""
        if not self._given:
            return
        root = os.path.realpath(self.root)
        named = [_named(root, broker_root) for broker_root in self.broker_roots]
        if noted_roots(self.root) == [os.path.realpath(os.path.join(root, named_root))
                                      for named_root in named]:
            return
        folder = os.path.join(root, STAGING)
        make_folders(folder)
        publish(os.path.join(folder, ROOTS_NOTE), json.dumps({"homes": named}).encode(), store=root,
                staging=folder)


def _named(root: str, broker_root: str) -> str:
    """Return the path under which a broker's root is recorded.

    If the broker's root contains ``root``, the path is relative to ``root``, because the two are
    then moved together. In all other cases, the path is absolute.
    """
    below = root.startswith(os.path.join(broker_root, ""))
    return os.path.relpath(broker_root, root) if below else broker_root


def noted_roots(root: str) -> list[str]:
    """Return the broker's roots that a repair of ``root`` recorded; an empty list if it recorded
    none.
    """
    path = os.path.join(root, STAGING, ROOTS_NOTE)
    try:
        with open(open_file(path, os.O_RDONLY, "read"), "rb") as file:
            names = json.load(file)["homes"]
    except (StoreIOError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    own_root = os.path.realpath(root)
    return [os.path.realpath(os.path.join(own_root, name)) for name in names
            if isinstance(name, str) and "\0" not in name] if isinstance(names, list) else []
