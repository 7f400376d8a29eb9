"""The picture of the pool: every block in its place, at any size and width."""

import random
import re

import pytest

from pagedrun.cli.report.block_tables import MAX_LINES, map_lines


def expected(blocks: str, per_cell: int) -> str:
    """One character for each `per_cell` blocks, told block by block."""
    picture = ""
    for start in range(0, len(blocks), per_cell):
        cell = blocks[start : start + per_cell]
        counts = {letter: cell.count(letter) for letter in "SPC"}
        most = max(counts, key=lambda letter: counts[letter])  # the first of equals
        if not counts[most]:
            picture += "."
        else:
            picture += most if counts[most] == len(cell) else most.lower()
    return picture


def unfolded(lines: list[str], per_cell: int, num_blocks: int) -> str:
    """Put the lines of the picture one after the other; each says where it begins."""
    picture = ""
    for line in lines:
        match = re.fullmatch(r" *([\d,]+)  (?:free as far as block ([\d,]+)|([SPCspc.]+))", line)
        assert match, line
        assert int(match[1].replace(",", "")) == len(picture) * per_cell
        if match[2]:
            last = int(match[2].replace(",", ""))
            picture += "." * (-(-(last + 1) // per_cell) - len(picture))
        else:
            picture += match[3]
    return picture


@pytest.mark.parametrize("width", [20, 40, 80, 140, 400])
@pytest.mark.parametrize("num_blocks", [1, 15, 16, 17, 1000, 2048, 2049, 100_003])
@pytest.mark.parametrize("use", [0.0, 0.1, 1.0])
def test_every_block_is_where_it_belongs(width: int, num_blocks: int, use: float) -> None:
    chance = random.Random(num_blocks)
    used = int(num_blocks * use)
    blocks = "".join(chance.choice("SSPPPC.") for _ in range(used)) + "." * (num_blocks - used)
    lines, per_cell = map_lines(blocks, width)
    plain = [line.plain for line in lines]
    assert max(map(len, plain)) <= max(width, 40)
    assert len(plain) <= MAX_LINES
    assert unfolded(plain, per_cell, num_blocks) == expected(blocks, per_cell)


def test_it_is_as_fine_as_fits() -> None:
    assert map_lines("P" * 64 * MAX_LINES, 80)[1] == 1
    assert map_lines("P" * (64 * MAX_LINES + 1), 80)[1] == 2
    assert map_lines("P" * 64 + "." * 10**6, 80)[1] == 1  # what is free takes one line
    assert map_lines("", 80) == ([], 1)


def test_colour_says_what_the_letter_says() -> None:
    (line,), _ = map_lines("SSPPC..", 80)
    styled = {line.plain[span.start : span.end]: str(span.style) for span in line.spans[1:]}
    assert list(styled) == ["SS", "PP", "C", ".."]
    assert len(set(styled.values())) == 4
