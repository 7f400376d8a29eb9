"""The choice of the next token, and the random numbers behind it.

**The choice rule.** Every twin follows it; a row's choice depends on that row's arguments alone.

1. A row that holds a NaN, or whose largest logit is not finite, has no choice: the id is -1.
   Single logits may be -inf: those tokens are never chosen.
2. `temperature` < 1e-5 is greedy: the id of the largest logit, the lowest id on ties.
3. Otherwise `z[v] = float32(logits[v]) / temperature`, rounded to float32, and `m = max(z)`. The
   filters only ever raise a threshold on z, so equal logits are kept or dropped together:
   a. `min_p` > 0 drops `z[v] < m + log(min_p)` (float32 sum);
   b. `top_k` > 0 drops `z[v]` below the top_k-th largest of what is left, counted with
      repetition; when fewer are left, all stay;
   c. `top_p` < 1: with `w[v] = exp(z[v] - m)` over what is left, the largest threshold t for which
      `sum(w[v] : z[v] >= t) >= top_p * sum(w)` drops everything below t.
4. Every token has a random word `x[v]`: lane `v % 4` of Philox4x32-10 with key
   `(seed mod 2^32, seed >> 32)` and counter `(v // 4, position, row, sample)`, each mod 2^32, the
   first word of key and counter being the least significant. With `u = (x + 1/2) / 2^32` its
   Gumbel noise is `g = -log(-log(u))`. The id is that of the largest `z[v] + g[v]` among the
   tokens kept, the lowest id on ties.
   The noise must be evaluated so that u close to 1 keeps its digits: in float64, or in float32 as
   `-log(-log1p(-(y + 1/2) / 2^32))` with `y = 2^32 - 1 - x`.

Step 4 draws v with probability `softmax(z)[v]` over the tokens kept (the Gumbel-max trick).
"""

import torch
from torch import Tensor

GREEDY_BELOW = 1e-5
_WORD = 0xFFFFFFFF


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    row: Tensor,
    sample: Tensor,
    position: Tensor,
    *,
    filtered: bool = True,
) -> Tensor:
    """Choose one token for each row of logits, by the choice rule at the top of this file.

    logits: [num_rows, vocab_size] float32 or bfloat16. All others [num_rows]: temperature, top_p,
    min_p float32; top_k int32 (0 or less: off); seed, row, sample, position int64: the stream of
    random numbers, where `row` is the input row, `sample` which of its answers, and `position` the
    position of the token being chosen. filtered: for backends that can do without the filters.
    Returns [num_rows] int64: token ids, or -1 where the logits hold no choice.
    """
    ids = torch.full((len(logits),), -1, dtype=torch.int64, device=logits.device)
    for index, row_logits in enumerate(logits):
        x = row_logits.to(torch.promote_types(logits.dtype, torch.float32))
        if x.isnan().any() or not x.max().isfinite():
            continue
        if temperature[index] < GREEDY_BELOW:
            ids[index] = _first_largest(x)
            continue
        z = x / temperature[index]
        kept = _keep(z, int(top_k[index]), float(top_p[index]), min_p[index])
        counter = [int(each[index]) for each in (position, row, sample)]
        noise = gumbel_noise(len(z), int(seed[index]), *counter).to(z.device)
        ids[index] = _first_largest(torch.where(kept, z.double() + noise, -torch.inf))
    return ids


def _first_largest(x: Tensor) -> Tensor:
    return (x == x.max()).nonzero()[0, 0]


def _keep(z: Tensor, top_k: int, top_p: float, min_p: Tensor) -> Tensor:
    """Return which tokens pass step 3, as [vocab_size] bool."""
    kept = z > -torch.inf
    if min_p > 0:
        kept &= z >= z.max() + min_p.log()
    if top_k > 0:
        best = z[kept].topk(min(top_k, int(kept.sum()))).values
        kept &= z >= best[-1]
    if top_p < 1:
        ordered = z[kept].sort(descending=True).values
        mass = (ordered.double() - ordered[0]).exp().cumsum(0)
        enough = int((mass < top_p * mass[-1]).sum())  # the index at which the mass suffices
        kept &= z >= ordered[enough]
    return kept


def gumbel_noise(vocab_size: int, seed: int, position: int, row: int, sample: int) -> Tensor:
    """Return the Gumbel noise of every token of one choice, [vocab_size] float64."""
    blocks = torch.arange(-(-vocab_size // 4), dtype=torch.int64)
    rest = (torch.full_like(blocks, word & _WORD) for word in (position, row, sample))
    words = torch.stack(philox4x32([blocks, *rest], (seed & _WORD, (seed >> 32) & _WORD)), dim=1)
    u = (words.flatten()[:vocab_size].double() + 0.5) / 2**32
    return -torch.log(-torch.log(u))


def philox4x32(counter: list[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Return the four words of Philox4x32 with ten rounds, each [n] int64 holding a uint32.

    counter: four [n] int64 tensors of uint32 values, the least significant word first.
    Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", section 3.4.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(c0, 0xD2511F53)
        high1, low1 = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return [c0, c1, c2, c3]


def _multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the high and low words of a 32 by 32 bit product, without overflowing int64."""
    low = word * (factor & 0xFFFF)  # 48 bits
    high = word * (factor >> 16) + (low >> 16)  # 49 bits
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)
