"""How many numbers an object of the library holds."""

from torch import Tensor, nn


def num_kept(cache: object) -> int:
    """Return how many numbers all tensors are that can be reached from an object."""
    seen: set[int] = set()
    found: list[object] = [cache]
    count = 0
    while found:
        each = found.pop()
        if id(each) in seen or isinstance(each, type | nn.Module):
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            count += each.numel()
        elif isinstance(each, dict):
            found += each.values()
        elif isinstance(each, list | tuple | set):
            found += each
        elif hasattr(each, "__dict__"):
            found += vars(each).values()
    return count
