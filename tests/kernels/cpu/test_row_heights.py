"""Heights at which a row keeps its bits, found by trying, with products that change their bits."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.linears import onednn_linear
from pagedrun.kernels.cpu.linears.onednn_linear import CUTS, MIN_ROWS, RowHeights
from tests.support.kernel_cases import threads

SHAPE = torch.Size((40, 24))


class Multiply:
    """Multiplies rows as their height asks: `is_odd(height, row)` rows have other bits."""

    def __init__(self, is_odd: Callable[[int, int], bool]) -> None:
        self.is_odd = is_odd
        self.heights: list[int] = []

    def __call__(self, x: Tensor, packed: Tensor) -> Tensor:
        self.heights.append(len(x))
        y = x[:, :1] + packed[:, 0]  # no sum of many, which would have an order
        for row in range(len(x)):
            if self.is_odd(len(x), row):
                y[row] += 1
        return y


def same(weight: Tensor) -> Tensor:
    return weight


def tried(is_odd: Callable[[int, int], bool]) -> RowHeights:
    return RowHeights.tried(Multiply(is_odd), same, SHAPE)


def test_all_heights_agree() -> None:
    multiply = Multiply(lambda height, row: height < MIN_ROWS)
    heights = RowHeights.tried(multiply, same, SHAPE)
    assert heights == RowHeights(CUTS, all_agree=True)
    assert min(multiply.heights) >= MIN_ROWS


def test_heights_with_other_bits_are_left_out() -> None:
    assert tried(lambda height, row: 33 <= height < 384) == RowHeights((16, 32, 512), False)
    assert tried(lambda height, row: height != 32) == RowHeights((32,), False)


def test_one_height_that_is_no_cut_is_enough_to_doubt_the_others() -> None:
    assert tried(lambda height, row: height == 47) == RowHeights(CUTS, all_agree=False)


@pytest.mark.parametrize("height", [16, 64, 128, 256, 512])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 1.0])
def test_one_row_with_other_bits_rules_out_a_height(height: int, place: float) -> None:
    odd_row = int(place * (height - 1))
    heights = tried(lambda num_rows, row: num_rows == height and row == odd_row)
    assert heights == RowHeights(tuple(cut for cut in CUTS if cut != height), False)


def test_rows_at_the_end_are_looked_at_too() -> None:
    """The last rows of a height that is no multiple of a register block, say."""
    for height in (33, 47, 65, 129):
        heights = tried(lambda num_rows, row, h=height: num_rows == h and row == h - 1)  # type: ignore[misc]
        assert heights == RowHeights(CUTS, all_agree=False), height


@pytest.mark.parametrize(("lowest", "cuts"), [(64, (16, 32)), (0, ())])
def test_what_depends_on_threads_is_left_out(lowest: int, cuts: tuple[int, ...]) -> None:
    """The rows to agree with are those of one thread."""
    with threads(2):
        heights = tried(lambda height, row: torch.get_num_threads() > 1 and height >= lowest)
        assert torch.get_num_threads() == 2
    assert heights == RowHeights(cuts, all_agree=False)


def test_large_weights_are_tried_at_few_heights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_linear, "_LARGE", SHAPE.numel())
    multiply = Multiply(lambda height, row: False)
    heights = RowHeights.tried(multiply, same, SHAPE)
    assert heights == RowHeights((16, 32, 64, 128), all_agree=False)
    assert set(multiply.heights) == {16, 32, 64, 128}


EVERY_NUMBER = [*range(700), 1024, 2048, 2049]


@pytest.mark.parametrize("cuts", [CUTS, (16, 32), (16, 32, 512), (32,), (64, 128), (512,), (16,)])
def test_pieces_are_all_rows_once(cuts: tuple[int, ...]) -> None:
    heights = RowHeights(cuts, all_agree=False)
    for num_rows in EVERY_NUMBER:
        pieces = list(heights.pieces(num_rows))
        assert sum(rows for rows, _ in pieces) == num_rows
        if num_rows == 0:
            assert pieces == [(0, 4)]
            continue
        assert {height for _, height in pieces} <= set(cuts)
        assert all(0 < rows <= height for rows, height in pieces)
        assert all(rows == height for rows, height in pieces[:-1])  # only the last is padded
        rows, height = pieces[-1]
        lower = [cut for cut in cuts if cut < height]
        assert height <= 64 or rows == height or not lower or lower[-1] > rows


def test_pieces_where_all_heights_agree() -> None:
    heights = RowHeights(CUTS, all_agree=True)
    for num_rows in EVERY_NUMBER:
        assert list(heights.pieces(num_rows)) == [(num_rows, max(num_rows, MIN_ROWS))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(onednn_linear, "private_folder", lambda name: tmp_path)
    return tmp_path


def found(multiply: Multiply, shape: torch.Size = SHAPE) -> object:
    return RowHeights.of(multiply, same, shape)


@pytest.fixture
def odd_64() -> Multiply:
    return Multiply(lambda height, row: height == 64)


EXPECTED = RowHeights((16, 32, 128, 256, 512), all_agree=False)


def test_what_was_found_is_read_back(folder: Path, odd_64: Multiply) -> None:
    assert found(odd_64) == EXPECTED
    (kept,) = folder.iterdir()
    assert json.loads(kept.read_text()) == {"cuts": [*EXPECTED.cuts], "all_agree": False}
    again = Multiply(lambda height, row: False)
    assert found(again) == EXPECTED
    assert not again.heights


@pytest.mark.parametrize(
    "spoilt", ["", "{", "[]", "null", '{"cuts": 5, "all_agree": true}', '{"all_agree": true}']
)
def test_a_spoilt_file_is_tried_again(spoilt: str, folder: Path, odd_64: Multiply) -> None:
    found(odd_64)
    (kept,) = folder.iterdir()
    kept.write_text(spoilt)
    odd_64.heights.clear()
    assert found(odd_64) == EXPECTED
    assert odd_64.heights
    assert json.loads(kept.read_text())["cuts"] == [*EXPECTED.cuts]


def test_bytes_that_are_no_text_are_tried_again(folder: Path, odd_64: Multiply) -> None:
    found(odd_64)
    (kept,) = folder.iterdir()
    kept.write_bytes(b"\xff\xfe\x00")
    assert found(odd_64) == EXPECTED


def changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make each change in turn, all but the last one undone."""
    for variable in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, f"not {os.environ.get(variable)}")
            yield variable
    for module, name in (
        (torch, "get_num_threads"),
        (onednn_linear, "processor_name"),
        (onednn_linear, "_source_digest"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: 77)
            yield name


def test_what_onednn_chooses_by_is_told_apart(
    folder: Path, odd_64: Multiply, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(odd_64)
    found(odd_64, shape=torch.Size((24, 40)))
    assert len(list(folder.iterdir())) == 2
    for number, change in enumerate(changes(monkeypatch)):
        monkeypatch.setattr(onednn_linear, "_on_one_thread", lambda compute: compute())
        found(odd_64)
        assert len(list(folder.iterdir())) == 3 + number, change


@pytest.mark.parametrize("missing", [None, Path("/proc/no/such/folder")])
def test_without_a_folder_it_is_tried_each_time(
    missing: Path | None, odd_64: Multiply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn_linear, "private_folder", lambda name: missing)
    for _ in range(2):
        odd_64.heights.clear()
        assert found(odd_64) == EXPECTED
        assert odd_64.heights
