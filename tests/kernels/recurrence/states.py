"""Chunks of sequences whose tokens lie scattered in a batch."""

import torch

from pagedrun.kernels.op_values import StateInputs


def state_inputs(
    lengths: list[int], reads: list[int], writes: list[int | list[int]], *, scattered: bool = True
) -> StateInputs:
    """Return chunks of so many tokens; `scattered`: no two of them are neighbours in the batch.

    writes: slots behind the last tokens of each chunk, a number for one.
    """
    generator = torch.Generator().manual_seed(3)
    num_tokens = sum(lengths)
    order = torch.randperm(num_tokens, generator=generator)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    slots = torch.full((num_tokens,), -1, dtype=torch.int32)
    for end, length, given in zip(starts[1:].tolist(), lengths, writes, strict=True):
        own = [given] if isinstance(given, int) else given
        slots[end - min(len(own), length) : end] = torch.tensor(own[:length], dtype=torch.int32)
    return StateInputs(
        (order if scattered else torch.arange(num_tokens)).int(),
        starts.int(),
        torch.tensor(reads, dtype=torch.int32),
        slots,
    )
