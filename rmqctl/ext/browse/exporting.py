"""Export the messages in a list to a new file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rmqctl.errors import UsageError, require
from rmqctl.ext.browse.listing import Watch
from rmqctl.ext.browse.opened import BrowsedPlace, StoreView
from rmqctl.output.escape import spreadsheet_safe
from rmqctl.output.units import counted
from rmqctl.store.query.conditions import Condition
from rmqctl.store.query.select import Selection


def export(reader: StoreView, place: BrowsedPlace, conditions: Sequence[Condition], target: str,
           watch: Watch) -> str:
    """Write to a new file the messages of ``place`` that match the conditions. As with `rmqctl
    export`, they are in log order and include messages without a consume queue entry. Return a
    sentence that states the result.
    Raises: RmqctlError.
    """
    from rmqctl.export.one_file import export_file, form_of
    from rmqctl.export.plan import check_place, plan
    from rmqctl.export.spec import Export

    form = form_of(target)
    if form is None:
        raise UsageError(f"{target}: unknown extension; use .jsonl .csv .parquet .avro .arrow "
                         ".xlsx")
    require(*form.packages)
    store = reader.store
    wanted = Selection(place.topic or None, place.queue_id, where=tuple(conditions))
    file = reader.log_file(place.path) if place.kind == "file" else None
    if file is not None:
        wanted = replace(wanted, from_phy=file.base, to_phy=file.end)
    spec = Export.of(form.format, partition_by=(), compression=form.compression,
                     conditions=wanted.in_log(), csv_text=spreadsheet_safe)
    folders = store.log_folders
    check_place(target, [store.root], folders)
    plans = plan([store.root], wanted, 1, folders=folders, sizes=store.sizes)
    result = export_file(plans, spec, target, progress=watch)
    missing = "" if result.complete else "; some could not be read (see `rmqctl verify`)"
    return f"{counted(result.total('rows'), 'message')} exported to {target}{missing}"
