"""The pictures of rows, in the forms that callers have -> columns that the library reads in place.

A picture is the bytes of a file (JPEG, PNG, WebP); a path or a "data:" URL; an image of PIL; or an array of uint8 with
the shape (height, width), (height, width, 1), (height, width, 3) or (height, width, 4), such as NumPy's.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from array import array
from dataclasses import dataclass
from typing import Any, Iterable, Sequence, Union

from . import native

Picture = Union[bytes, bytearray, memoryview, str, "os.PathLike[str]", Any]
"""Described at the top of this module."""

Images = Iterable[Union[Picture, Sequence[Picture], None]]
"""For each row: its pictures, one picture, or None."""

_UNREADABLE = b""
_PNG_MODES = ("1", "L", "LA", "I;16", "I;16B", "P", "RGB", "RGBA")  # what every Pillow writes as PNG
_CONVERTED = {"I": "I;16", "PA": "RGBA", "La": "LA", "RGBa": "RGBA"}  # others become RGB
_COLOURS = {1: 0, 3: 2, 4: 6}  # PNG's kinds of colour, by channels


@dataclass(frozen=True)
class PictureColumn:
    """The pictures of rows: those of row i are items [rows[i], rows[i + 1])."""

    rows: array[int]
    data: bytes
    offsets: array[int]
    kinds: bytes


def folder_list(folders: Any) -> list[str]:
    """Paths of folders, of which a caller may give only one."""
    return [os.fspath(one) for one in ([folders] if isinstance(folders, (str, os.PathLike)) else folders)]


def open_pictures(model: Any, folders: Sequence[Any]) -> native.batchllm_pictures:
    return native.batchllm_pictures_open(os.fspath(model), b"".join(os.fsencode(folder) + b"\0" for folder in folders))


def images_list(images: Any) -> list[Any]:
    """One entry for each row, from a list, a pandas or Polars column or an Arrow array."""
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(images, name):
            return list(getattr(images, name)())
    if isinstance(images, (str, bytes, bytearray, memoryview, os.PathLike, dict)):
        raise TypeError(f"images is one {type(images).__name__}: a list with the pictures of each row is expected")
    return list(images)


def images_of(images: Sequence[Any], first: int, n: int) -> Sequence[Any]:
    """Those of rows [first, first + n)."""
    if len(images) < first + n:
        raise ValueError(f"images of {len(images)} rows for {first + n} rows")
    return images[first : first + n]


def picture_items(row: Any) -> tuple[Union[bytes, str], ...]:
    """A row's pictures as bytes of files and as names, which can be sent and compared. One of no such form cannot be read:
    only its row fails, not the job."""
    found: list[Union[bytes, str]] = []
    for picture in _pictures_of(row):
        try:
            kind, item = _item(picture)
        except TypeError:
            kind, item = native.BATCHLLM_PICTURE_BYTES, _UNREADABLE
        found.append(item.decode() if kind == native.BATCHLLM_PICTURE_NAME else item)
    return tuple(found)


def picture_counts(images: Sequence[Any]) -> array[int]:
    """How many pictures each row has."""
    return array("i", [len(_pictures_of(row)) for row in images])


def picture_column(images: Sequence[Any]) -> PictureColumn:
    rows, offsets, kinds = array("q", [0]), array("q", [0]), bytearray()
    items = []
    for row in images:
        for picture in _pictures_of(row):
            kind, item = _item(picture)
            items.append(item)
            kinds.append(kind)
            offsets.append(offsets[-1] + len(item))
        rows.append(len(kinds))
    return PictureColumn(rows, b"".join(items), offsets, bytes(kinds))


def _pictures_of(row: Any) -> Sequence[Any]:
    row = row if isinstance(row, (list, tuple)) else (row,)
    # NaN: pandas' null.
    return [picture for picture in row if not (picture is None or isinstance(picture, float) and picture != picture)]


def _item(picture: Any) -> tuple[int, bytes]:
    if isinstance(picture, dict):  # as Hugging Face's datasets store one: with its bytes, else with its path
        data, path = picture.get("bytes"), picture.get("path")
        picture = data if isinstance(data, bytes) else path if isinstance(path, str) else _UNREADABLE
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return native.BATCHLLM_PICTURE_BYTES, bytes(picture)
    if isinstance(picture, (str, os.PathLike)):
        return native.BATCHLLM_PICTURE_NAME, os.fspath(picture).encode()
    if hasattr(picture, "save") and hasattr(picture, "mode"):  # PIL's
        if picture.mode == "F":
            raise TypeError("an image of PIL in mode F: its numbers have no range; convert it")
        if picture.mode.startswith("I;16") and picture.mode not in _PNG_MODES:
            picture = picture.convert("I")
        if picture.mode not in _PNG_MODES:  # such as CMYK of a JPEG
            picture = picture.convert(_CONVERTED.get(picture.mode, "RGB"))
        file = io.BytesIO()
        picture.save(file, format="PNG", compress_level=1)
        return native.BATCHLLM_PICTURE_BYTES, file.getvalue()
    if hasattr(picture, "shape") and hasattr(picture, "tobytes"):
        return native.BATCHLLM_PICTURE_BYTES, _png(picture)
    raise TypeError(
        f"a picture is one {type(picture).__name__}: bytes of a file, a path, an image of PIL or an array of uint8 is expected"
    )


def _png(pixels: Any) -> bytes:
    """The file that holds exactly these pixels."""
    shape = tuple(pixels.shape) + ((1,) if len(pixels.shape) == 2 else ())
    if str(pixels.dtype) != "uint8" or len(shape) != 3 or shape[2] not in _COLOURS or 0 in shape:
        raise TypeError(
            f"a picture is an array of {pixels.dtype} with the shape {tuple(pixels.shape)}: uint8 with the shape "
            "(height, width, 3) is expected, or with 1 or 4 channels or none"
        )
    height, width, channels = shape
    flat, row = pixels.tobytes(), width * channels
    lines = b"".join(b"\0" + flat[at : at + row] for at in range(0, len(flat), row))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")
