"""What a fault is: a name, how it is done and undone, how long it lasts, and what its victims may get instead."""

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from tests.chaos.ledger import Deserts
from tests.chaos.stand import Stand


class Skipped(Exception):
    """The fault cannot be made on this machine; the message says why, and it is shown."""


class Blow(msgspec.Struct, frozen=True):
    """One occurrence: on whom, and with whose dice."""

    stand: Stand
    victim: str
    """An instance, i1 and so on, or a replica, r1 and so on; whichever kind the fault is for."""
    rng: random.Random


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    name: str
    strike: Callable[[Blow], AbstractAsyncContextManager[None]]
    """Inside the block the fault is there; leaving it undoes the fault."""
    kind: str = ""
    """Of several faults that are one row of the short table, its name; empty: a row of its own."""
    hold_s: float = 3.0
    hits: str = "instance"
    """Of what kind the victim is: instance or replica."""
    deserts: Deserts = Deserts()
    is_short: bool = False
    """Whether it is in the short form too."""
    is_restart: bool = False
    """Whether a process is new afterwards, so that its memory starts anew."""
