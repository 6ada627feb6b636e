"""Every way in which a fleet is broken here: one row a fault, from the four modules beside this one."""

from typing import Final

from tests.chaos.faults.base import Fault
from tests.chaos.faults.bus import BUS
from tests.chaos.faults.engines import ENGINES
from tests.chaos.faults.network import NETWORK
from tests.chaos.faults.parts import PARTS

#: Row of the short table for each fault.
KINDS: Final = {fault.name: fault.kind or fault.name for fault in (*PARTS, *BUS, *ENGINES, *NETWORK)}

FAULTS: Final[dict[str, Fault]] = {fault.name: fault for fault in (*PARTS, *BUS, *ENGINES, *NETWORK)}
