"""What a row has in common with others, against prompts laid side by side."""

from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.planning.prefix_tree import request_tree
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(prompts=PROMPTS)
def test_every_prefix_of_a_row_is_found_with_all_rows_that_have_it(
    prompts: list[list[int]],
) -> None:
    """Neither a prefix too few, nor one counted without the rows that equal it."""
    tree = request_tree([Request(i, tuple(p), SamplingParams()) for i, p in enumerate(prompts)], 4)
    for row, prompt in enumerate(prompts):
        longest: dict[int, int] = {}  # the longest prefix that so many rows have
        for length in range(1, len(prompt) + 1):
            longest[sum(other[:length] == prompt[:length] for other in prompts)] = length
        shared = [(length, count) for count, length in longest.items() if count > 1]
        found = [(each.num_tokens, each.num_rows) for each in tree.prefixes_of(row)]
        assert found == sorted(shared)
