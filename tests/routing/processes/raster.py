"""A small canvas that becomes a PNG: rectangles, lines, discs and text, with the standard library only.

Drawn three times as fine and averaged, so that edges are smooth. Knows nothing of what is drawn.
"""

import struct
import zlib
from typing import Final

from tests.routing.processes.letters import HEIGHT, columns

Colour = tuple[int, int, int]

_FINE: Final = 3  # points of the raster for each pixel, in both directions

_ZOOM: Final = 2  # pixels for each unit of what is drawn: sharp on screens that show it at half its size

_POINTS: Final = _FINE * _ZOOM


class Canvas:
    """`width` × `height` units, the origin at the top left."""

    def __init__(self, width: int, height: int, background: Colour) -> None:
        self._width = width * _ZOOM  # pixels
        self._height = height * _ZOOM
        self._rows = [bytearray(bytes(background) * (width * _POINTS)) for _ in range(height * _POINTS)]

    def rectangle(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        """Fill a rectangle; what lies outside is cut off."""
        left, right = (max(0, min(self._width * _FINE, round(at * _POINTS))) for at in (x, x + width))
        top, bottom = (max(0, min(self._height * _FINE, round(at * _POINTS))) for at in (y, y + height))
        if right > left:
            for row in self._rows[top:bottom]:
                row[left * 3 : right * 3] = bytes(colour) * (right - left)

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """Fill a disc around a point."""
        steps = round(radius * _POINTS)
        for step in range(-steps, steps + 1):
            half = max(0.0, radius**2 - (step / _POINTS) ** 2) ** 0.5
            self.rectangle(x - half, y + step / _POINTS, 2 * half, 1 / _POINTS, colour)

    def text(self, x: float, y: float, text: str, colour: Colour, *, size: float = 2.0, anchor: float = 0.0) -> None:
        """Write a line, its top at `y`; `anchor` is the share of its width that lies left of `x`."""
        at = x - anchor * text_width(text, size)
        for letter in text:
            for bits in columns(letter):
                for row in range(HEIGHT):
                    if bits >> row & 1:
                        self.rectangle(at, y + row * size, size, size, colour)
                at += size
            at += size

    def png(self) -> bytes:
        """The picture as a file."""
        lines = b"".join(b"\0" + self._averaged(self._rows[at : at + _FINE]) for at in range(0, len(self._rows), _FINE))
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)
        chunks = (b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)

    def _averaged(self, rows: list[bytearray]) -> bytes:
        if rows[0] == rows[1] == rows[2] and len(set(zip(*[iter(rows[0])] * 3, strict=True))) == 1:
            return bytes(rows[0][: self._width * 3])  # most of a picture is background
        channels = []
        for channel in range(3):
            points = [sum(point) for point in zip(*(row[channel::3] for row in rows), strict=True)]
            channels.append(bytes(sum(points[at : at + _FINE]) // _FINE**2 for at in range(0, len(points), _FINE)))
        return bytes(value for pixel in zip(*channels, strict=True) for value in pixel)


def text_width(text: str, size: float) -> float:
    """Units that a line takes."""
    return sum(len(columns(letter)) + 1 for letter in text) * size


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
