"""Columns of numbers as a page carries them: differences, deflated, in base64.

From one sample of the pool to the next few blocks change, so that their differences are mostly
zeros: hundreds of samples of tens of thousands of blocks come to a few hundred kilobytes.
"""

import base64
import zlib
from typing import Any, TypedDict

from numpy.typing import NDArray

_STORED = {"u": ("uint16", "<u2"), "i": ("int32", "<i4"), "b": ("uint16", "<u2")}


class Packed(TypedDict):
    """A column of whole numbers as JSON holds it: compressed differences, as base64."""

    type: str
    width: int
    bytes: str


def pack(column: NDArray[Any]) -> Packed:
    """Return `column`, of one or two dimensions, for `unpack` in charts.js.

    Differences are taken along the first dimension, and wrap as the type does. Takes bool, uint16
    and int32.
    """
    name, stored = _STORED[column.dtype.kind]
    assert column.dtype.kind == "b" or column.dtype == name, f"cannot pack {column.dtype}"
    values = column.astype(stored)
    differences = values.copy()
    differences[1:] -= values[:-1]
    packed = zlib.compress(differences.tobytes(), 6)
    width = column.shape[1] if column.ndim == 2 else 1
    return {"type": name, "width": width, "bytes": base64.b64encode(packed).decode("ascii")}
