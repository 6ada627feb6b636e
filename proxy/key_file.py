"""The file of API keys as it stands on disk: read at start, read again when it changes.

A file that is gone or malformed keeps the keys that were read last: a slip of an editor must shut nobody out. One that
can be read and has no key lets nobody in: so the last key is revoked. A change is read when the file was the same at
two looks: what an editor has cut to nothing and not yet written again is not what it means.
"""

import logging
from pathlib import Path

from bus.hop.stamp import Stamp, stamp_of
from proxy.keys import ApiKey, KeysUnusable, parse_keys

log = logging.getLogger("forebay.proxy")


class KeyFile:
    """Keys of one file. Raises KeysUnusable if they cannot be read at the start, or there is none."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: Stamp | None = None
        self._changing: Stamp | None = None
        self._is_broken = False
        self.keys: tuple[ApiKey, ...] = ()
        self._read()
        if not self.keys:
            raise KeysUnusable(f"API keys {path!r}: no key stands there: make one with `forebay key new NAME`")

    def refresh(self) -> None:
        """Read the file again if it has changed and now stands still; a broken one is told of once."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            if stamp != self._changing:
                self._changing = stamp
                return
            self._read()
        except KeysUnusable as fault:
            if not self._is_broken:
                log.error("%s: the keys read before stay valid", fault)  # noqa: TRY400 - no fault of ours
            self._is_broken = True
        else:
            self._is_broken = False
            if self.keys:
                log.info("API keys: %d read", len(self.keys))
            else:
                log.warning("API keys: none stands in the file: nobody is let in")

    def _read(self) -> None:
        self._seen = self._stamp()
        try:
            self.keys = parse_keys(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as fault:
            raise KeysUnusable(f"API keys {str(self._path)!r} cannot be read: {_why(fault)}") from fault
        except KeysUnusable as fault:
            raise KeysUnusable(f"API keys {str(self._path)!r}: {fault}") from fault

    def _stamp(self) -> Stamp:
        try:
            return stamp_of(self._path)
        except OSError as fault:
            raise KeysUnusable(f"API keys {str(self._path)!r} cannot be read: {_why(fault)}") from fault


def _why(fault: Exception) -> str:
    return fault.strerror or type(fault).__name__ if isinstance(fault, OSError) else "not UTF-8 text"
