"""What several tests of benchmarks measure."""

import pytest
import torch

from pagedrun.paged.bench.kernel_context import KernelContexts
from tests.bench.small_sweep import TINY


@pytest.fixture
def contexts() -> KernelContexts:
    return KernelContexts(TINY, torch.device("cpu"), torch.float32)
