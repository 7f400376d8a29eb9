"""One small model for all tests of the Python API."""

import pytest

from pagedrun.paged.llm import LLM
from tests.conftest import MakeModel


@pytest.fixture(scope="package")
def llm(make_model: MakeModel) -> LLM:
    return LLM(make_model("llama", "python"), dtype="float32", block_size=16, max_num_seqs=32)
