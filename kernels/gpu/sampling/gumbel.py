"""The random words and the noise behind a choice; the rule is in reference/sample.py.

Twice: in float32 for every token, and in float64 for those that could win. The float32 noise is
off by less than 1e-5, so what is further below the best than `margin` cannot be the choice.
"""

import triton
import triton.language as tl


@triton.jit
def random_words(seed, position, row, sample, first, TILE: tl.constexpr):
    """Return the words of tokens first .. first + TILE - 1 as [TILE] uint32; first: multiple of 4.

    Philox4x32-10, one counter for four neighbouring tokens.
    """
    counter = (first // 4 + tl.arange(0, TILE // 4)).to(tl.uint32)
    zero = counter * 0
    words = tl.philox(
        seed.to(tl.uint64),
        counter,
        zero + position.to(tl.uint32),
        zero + row.to(tl.uint32),
        zero + sample.to(tl.uint32),
        10,
    )
    even, odd = tl.interleave(words[0], words[2]), tl.interleave(words[1], words[3])
    return tl.interleave(even, odd)


@triton.jit
def noise(words):
    """Return the Gumbel noise as float32: u close to 1 keeps its digits, and so does u close to 0.

    With v = 1 - u, -log(u) is v + v²/2 + v³/3 + … where v is small.
    """
    u = (words.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    v = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    series = 1.0 / 9.0 + v * 0.1
    series = 0.125 + v * series
    series = 1.0 / 7.0 + v * series
    series = 1.0 / 6.0 + v * series
    series = 0.2 + v * series
    series = 0.25 + v * series
    series = 1.0 / 3.0 + v * series
    series = 0.5 + v * series
    series = v + v * v * series
    return -tl.log(tl.where(v < 0.125, series, -tl.log(u)))


@triton.jit
def exact_noise(words):
    """Return the Gumbel noise as float64."""
    u = (words.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
    return -tl.log(-tl.log(u))


@triton.jit
def margin(best):
    """Return how far below the best float32 score the true best may be: ten times its errors."""
    return 1e-4 + 1e-6 * tl.abs(best)
