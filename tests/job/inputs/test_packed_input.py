"""Compressed and plain-text inputs: the same rows, whole or refused, in bounded memory."""

import gzip
import hashlib
import io
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pagedrun.paged.job.inputs.byte_streams import CountedStream, DecompressedStream
from pagedrun.paged.job.inputs.reader import Reading, input_stem, open_rows
from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.values.errors import UsageError

ROWS = b"".join(b'{"id": %d, "prompt": "row %d"}\n' % (i, i) for i in range(5000))


def zstd(data: bytes) -> bytes:
    packed: bytes = pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    return packed


PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd}


def read(path: Path, max_line_bytes: int = 1000) -> list[Row]:
    with open_rows(str(path), Reading(max_line_bytes)) as source:
        return list(source)


@pytest.fixture(params=PACK)
def packing(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "zst":
        pytest.importorskip("zstandard")
    return name


def test_packed_rows_are_those_of_the_plain_file(tmp_path: Path, packing: str) -> None:
    plain, packed = tmp_path / "in.jsonl", tmp_path / f"in.jsonl.{packing}"
    plain.write_bytes(ROWS)
    packed.write_bytes(PACK[packing](ROWS))
    assert read(packed) == read(plain)
    with open_rows(str(packed)) as source:
        rows = list(source)
        digest = source.digest(whole=True)
        assert source.num_bytes_read == len(ROWS)
    assert len(rows) == 5000
    assert digest.sha256 == hashlib.sha256(packed.read_bytes()).hexdigest()
    assert digest.num_bytes == packed.stat().st_size


def test_several_members_are_one_text(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"in.JSONL.{packing.upper()}"
    path.write_bytes(b"".join(PACK[packing](ROWS[i : i + 5001]) for i in range(0, 20_000, 5001)))
    assert [row.id for row in read(path)][:500] == list(range(500))


def test_zeros_after_gzip_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(ROWS) + bytes(3000))
    assert len(read(path)) == 5000


def test_what_is_left_is_drained_unpacked_or_not(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"in.jsonl.{packing}"
    path.write_bytes(PACK[packing](ROWS))
    with open_rows(str(path)) as source:
        next(iter(source))
        assert source.drain()
        assert source.digest(whole=True).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def blanked(data: bytes) -> bytes:
    return data[:1500] + bytes(40) + data[1540:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((lambda data, keep=keep: data[:keep], "truncated") for keep in (1, 5, 100, -9, -1)),
        (blanked, "damaged near byte"),
        (lambda data: data + b"plain", "damaged near byte"),
        (lambda data: data + b"{}\n", "damaged near byte"),
        (lambda data: ROWS, "damaged near byte 0"),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, packing: str, change: Callable[[bytes], bytes], words: str
) -> None:
    path = tmp_path / f"in.jsonl.{packing}"
    path.write_bytes(change(PACK[packing](ROWS)))
    with pytest.raises(UsageError, match=rf"in\.jsonl\.\w+ .*{words}"):
        read(path)


def test_an_empty_packed_file_has_no_rows(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"in.jsonl.{packing}"
    for data in (b"", PACK[packing](b"")):
        path.write_bytes(data)
        with pytest.raises(UsageError, match="empty input"):
            read(path)


def zeros(num_bytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    pieces = [packer.compress(bytes(2**20)) for _ in range(num_bytes // 2**20)]
    return b"".join([*pieces, packer.flush()])


def test_a_bomb_is_refused_early_and_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(zeros(200 * 2**20))
    tracemalloc.start()
    with pytest.raises(UsageError, match="unpacks to more than"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20


def test_a_zstandard_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.txt.zst"
    path.write_bytes(zstd(b"x" * (300 * 2**20)))
    assert path.stat().st_size < 50_000
    tracemalloc.start()
    with pytest.raises(UsageError, match="unpacks to more than"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20


def test_the_size_that_may_be_unpacked_has_an_end() -> None:
    packed = CountedStream(io.BytesIO(gzip.compress(ROWS)))
    with pytest.raises(UsageError, match="more than 100,000 bytes"):
        DecompressedStream(packed, "in.jsonl.gz", ".gz", max_bytes=100_000).readall()


def test_a_long_line_inside_fails_alone(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"in.jsonl.{packing}"
    long = b'{"prompt": "' + b"x" * 2_000_000 + b'"}\n'
    path.write_bytes(PACK[packing](b'{"id": 1}\n' + long + b'{"id": 2}\n'))
    rows = read(path)
    assert [row.error.code if row.error else None for row in rows] == [None, "line_too_long", None]


def test_a_missing_zstandard_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "in.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(UsageError, match="pip install zstandard"):
        read(path)


def test_each_line_of_text_is_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes('\ufeffone "two\r\n\n  \n{"a": 1}\nü\u2028x'.encode())
    rows = read(path)
    assert [row.columns["prompt"] for row in rows] == ['one "two', '{"a": 1}', "ü\u2028x"]
    assert [row.line for row in rows] == [1, 4, 5]
    path.write_bytes(b"a\n\xff\nb")
    assert [row.error.code if row.error else None for row in read(path)] == [
        None,
        "invalid_utf8",
        None,
    ]


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes("hello".encode("utf-16-le"))
    with pytest.raises(UsageError, match=r"encoding.* utf-16-le"):
        read(path)


def test_jsonl_on_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ROWS)))
    with open_rows("-") as source:
        assert len(list(source)) == 5000
        assert not source.drain()


@pytest.mark.parametrize(
    ("name", "stem"),
    [("-", "stdin"), ("a/b.jsonl", "b"), ("b.v1.jsonl.gz", "b.v1"), ("b.TXT.ZST", "b")],
)
def test_answers_are_named_after_the_input(name: str, stem: str) -> None:
    assert input_stem(name) == stem
