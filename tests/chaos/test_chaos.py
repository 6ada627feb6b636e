"""The short form of `make chaos`: the faults that matter most, once each, on real processes."""

import pytest

from tests.chaos.campaign import campaign, chosen
from tests.chaos.ledger import Verdict
from tests.chaos.report import text

pytestmark = [pytest.mark.processes, pytest.mark.chaos]

SEED = 4
"""One that is the same for every run; `make chaos` draws its own."""

LOAD = 0.3
"""Share of the engines' capacity: what two busy cores carry."""

BUSY_MACHINE_S = 12.0
"""Longest recovery here; that it is within two TTLs on a quiet machine is what `make chaos` shows."""


async def test_nothing_is_lost_while_parts_are_killed_frozen_emptied_and_cut_off(tmp_path):
    """Every request is accounted for: answered whole, or broken in mid-stream by a fault that breaks streams."""
    said: list[str] = []
    async with campaign(tmp_path, seed=SEED, say=said.append, load=LOAD) as current:
        await current.one_by_one(chosen([], is_short=True), times=1)
    found = current.report("")
    shown = "\n".join([*said, text(found)])
    assert Verdict.RUNNING.name not in found.verdicts, shown
    assert found.requests == sum(found.verdicts.values()), shown
    assert found.lost == 0, shown
    assert found.faults == [], shown
    assert found.left == {}, shown
    assert all(row.recovery_s is not None and row.recovery_s <= BUSY_MACHINE_S for row in found.rows), shown
