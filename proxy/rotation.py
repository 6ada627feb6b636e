"""Round robin among those that tie, with an order of each replica's own. No I/O, no clock, no randomness."""

from collections.abc import Callable, Iterable, Sequence
from zlib import crc32


class Rotation:
    """Remembers which instance this replica chose when; of several it names the one that waited longest.

    `offset` differs from replica to replica, so that fresh replicas do not begin at the same instance.

    >>> rotation = Rotation(offset=0)
    >>> turns = []
    >>> for _ in range(4):
    ...     turns.append(rotation.first(["a", "b", "c"]))
    ...     rotation.note(turns[-1])
    >>> turns
    ['a', 'b', 'c', 'a']
    """

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._turn = 0
        self._last_turns: dict[str, int] = {}

    @classmethod
    def of_replica(cls, name: str) -> "Rotation":
        """Rotation whose offset comes from the replica's name."""
        return cls(crc32(name.encode()))

    def first(self, instances: Sequence[str]) -> str:
        """Of `instances` (not empty) the one that this replica has not chosen for the longest."""
        return min(instances, key=self.turns(instances)) if len(instances) > 1 else instances[0]

    def note(self, instance: str) -> None:
        """`instance` was chosen."""
        self._turn += 1
        self._last_turns[instance] = self._turn

    def forget_all_but(self, instances: Iterable[str]) -> None:
        """Drop what is remembered of instances that are gone."""
        self._last_turns = {name: self._last_turns[name] for name in instances if name in self._last_turns}

    def turns(self, instances: Sequence[str]) -> Callable[[str], tuple[int, int]]:
        """Sort key over `instances`: never chosen first, then longest ago, then the replica's own order."""
        last_turns, size = self._last_turns, len(instances)
        start = self._offset % size
        places = {name: (index - start) % size for index, name in enumerate(sorted(instances))}
        return lambda name: (last_turns.get(name, 0), places[name])
