"""A table with a column of every type that Parquet files of Arrow have."""

import decimal
import uuid
from datetime import date
from typing import Any

import pyarrow as pa
from pyarrow import parquet

ZONE = "Europe/Berlin"
FAR = 2**60  # microseconds: in the year 38,504, that Python does not have
NAN, INFINITY = float("nan"), float("inf")


def every_type() -> Any:
    """Return a table of three rows: two values of each type, and a null."""
    columns = {
        "boolean": pa.array([True, False, None]),
        "none": pa.nulls(3),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', "[]", None])),
        "uuid": pa.array([uuid.UUID(int=5).bytes, b"\xff" * 16, None], pa.uuid()),
        "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8())),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float32(), [2]),
            pa.array([[1, 2], [3, NAN], [0, 0]], pa.list_(pa.float32(), 2)),
        ),
    }
    for bits in (8, 16, 32, 64):
        signed, unsigned = f"int{bits}", f"uint{bits}"
        ends = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, None]
        columns[signed] = pa.array(ends, signed)
        columns[unsigned] = pa.array([0, 2**bits - 1, None], unsigned)
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        columns[str(kind)] = pa.array([NAN, INFINITY, None], kind)
        columns[f"more {kind}"] = pa.array([0.1, -INFINITY, -0.0], kind)
    for kind in (
        pa.decimal32(5, 2),
        pa.decimal64(9, 2),
        pa.decimal128(20, 2),
        pa.decimal256(60, 2),
    ):
        columns[f"decimal{kind.bit_width}"] = pa.array(
            [decimal.Decimal("100.00"), decimal.Decimal("-0.01"), None], kind
        )
    for unit in ("ms", "us", "ns"):
        columns[f"moment {unit}"] = pa.array([0, 1234567890123456, None], pa.timestamp(unit))
        columns[f"zoned {unit}"] = pa.array([1, -1234567890123, None], pa.timestamp(unit, ZONE))
    columns["offset"] = pa.array([5, 6, None], pa.timestamp("us", "+05:30"))
    columns["far"] = pa.array([FAR, -FAR, None], pa.timestamp("us"))
    for unit in ("s", "ms", "us", "ns"):
        columns[f"span {unit}"] = pa.array([1, -(10**12) - 1, None], pa.duration(unit))
    columns["day"] = pa.array([date(2020, 2, 29), date(1, 1, 1), None])
    columns["far day"] = pa.array([10**7, -(10**7), None], pa.date32())
    columns["time ms"] = pa.array([5, 86_399_999, None], pa.time32("ms"))
    columns["time us"] = pa.array([5, 86_399_999_999, None], pa.time64("us"))
    columns["time ns"] = pa.array([5, 86_399_999_999_999, None], pa.time64("ns"))
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        columns[str(kind)] = pa.array(["", "é 日本 that is longer than a view", None], kind)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)):
        columns[str(kind)] = pa.array([b"\x00\xff\x80", b"abc", None], kind)
    columns["bad text"] = pa.array([b"\xff", b"ok", None]).view(pa.string())
    words = pa.array(["x", "y", None])
    for kind in (pa.int8(), pa.int32()):
        columns[f"category {kind}"] = words.cast(pa.dictionary(kind, pa.string()))
    codes = pa.array([1, 0, None], pa.int8())
    columns["grade"] = pa.DictionaryArray.from_arrays(codes, ["low", "high"], ordered=True)
    columns["map"] = pa.array(
        [[("a", 1.5), ("a", NAN)], [], None], pa.map_(pa.string(), pa.float32())
    )
    columns["map of numbers"] = pa.array(
        [[(1, [2])], [], None], pa.map_(pa.int8(), pa.list_(pa.int8()))
    )
    for kind in (
        pa.list_(pa.int16()),
        pa.large_list(pa.int16()),
        pa.list_view(pa.int16()),
        pa.large_list_view(pa.int16()),
    ):
        columns[str(kind)] = pa.array([[1, None], [], None], kind)
    columns["vector"] = pa.array([[0.1, NAN], [1.0, INFINITY], None], pa.list_(pa.float32(), 2))
    inner = pa.struct(
        [("at", pa.timestamp("ns")), ("price", pa.decimal128(9, 2)), ("x", pa.float16())]
    )
    deep = {"at": 5, "price": decimal.Decimal("1.50"), "x": NAN}
    columns["structs"] = pa.array([[deep, None], [], None], pa.list_(inner))
    columns["object"] = pa.array(
        [{"in": deep, "times": [5]}, {"in": None, "times": None}, None],
        pa.struct([("in", inner), ("times", pa.list_(pa.time64("ns")))]),
    )
    return pa.table(columns)


def stored(table: Any) -> bytes:
    """Return a table as a Parquet file of one row group: equal bytes for equal types and values.

    NaN, text that is not UTF-8 and moments outside of Python's years have no other comparison.
    """
    sink = pa.BufferOutputStream()
    whole = table.unify_dictionaries().combine_chunks().replace_schema_metadata()
    parquet.write_table(whole, sink)
    return bytes(sink.getvalue().to_pybytes())
