"""Engine: what it refuses before anything is computed."""

import pytest

from pagedrun.paged.bench.model import BenchModel
from pagedrun.paged.errors import UsageError
from pagedrun.paged.request import Request
from pagedrun.paged.sampling import SamplingParams


@pytest.mark.parametrize("asked", [65, 64, 40])
def test_a_length_for_which_the_pool_is_too_small_names_the_largest_that_fits(asked: int) -> None:
    engine = BenchModel.from_shape("tiny").engine(
        dtype="float32", num_blocks=4, block_size=16, max_model_len=asked
    )
    # A row may be as long as that: its last token is never stored.
    request = Request(0, tuple(range(asked - 8)), SamplingParams(max_tokens=8, ignore_eos=True))
    (done,) = engine.start([request])
    assert done.error is None
    too_long = engine.reconfigured(max_model_len=66)
    sentence = (
        r"^--max-model-len 66 does not fit: the KV pool has room for 4 blocks of 16 tokens; "
        r"the largest that fits is --max-model-len 65$"
    )
    with pytest.raises(UsageError, match=sentence):
        too_long.start([request])
