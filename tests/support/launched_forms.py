"""Forms of Triton kernels that warm-up and a run launch, found without a GPU and without compiling.

    python tests/support/launched_forms.py FAMILY ...

A form is what a kernel is compiled for: constants, dtypes, and what of the arguments Triton
specializes on. Launches do nothing here, and what they would have written is zero. Prints JSON for
each family: the names of the kernels launched by warm-up, and the forms that only the run launched.
Run as a program, since here Triton must not interpret.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import transformers
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.paged.execution import decode_graphs
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.engines import load_engine
from tests.support.families import RECURRENT, TINY, save_tiny
from tests.support.mixture_families import MIXTURES

FAMILIES: dict[str, Any] = {**TINY, **RECURRENT, **MIXTURES}
# The family whose heads are those of the specialized kernels.
FAMILIES["qwen3"] = SimpleNamespace(
    config=lambda: transformers.Qwen3Config(
        vocab_size=272,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=1 << 15,
    )
)
Form = tuple[str, str]


@contextmanager
def recorded(forms: set[Form]) -> Iterator[None]:
    """Add the forms of launches to `forms`, instead of launching them."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    empty, empty_like = torch.empty, torch.empty_like

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        bind = create_function_from_signature(self.signature, self.params, backend)
        bound, specialization, unbound = bind(*args, debug=False, **options)
        names = zip(bound, specialization, strict=False)
        forms.add((self.fn.__name__, f"{list(names)} {sorted(unbound.items())}"))

    def zeros(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return empty(*args, **options).zero_()

    def zeros_like(*args: Any, **options: Any) -> torch.Tensor:
        return empty_like(*args, **options).zero_()

    early = 2 * decode_graphs.LAUNCHED_COST  # captures steps of a shape at the second one
    with (
        patch.object(JITFunction, "run", record),
        patch.object(torch, "empty", zeros),
        patch.object(torch, "empty_like", zeros_like),
        patch.object(decode_graphs, "CAPTURE_COST", early),
    ):
        yield


def rows() -> list[Request]:
    """Rows behind a long prefix, rows of their own of any length, filtered, with logprobs."""
    generator = torch.Generator().manual_seed(5)

    def tokens(size: int) -> tuple[int, ...]:
        return tuple(torch.randint(250, (size,), generator=generator).tolist())

    def params(**fields: Any) -> SamplingParams:
        return SamplingParams(ignore_eos=True, **fields)

    shared = tokens(1100)
    prompts = [
        ((*shared, *tokens(5 + i * 7 % 40)), params(max_tokens=3 + i % 4)) for i in range(99)
    ]
    filtered = params(max_tokens=4, temperature=0.7, top_p=0.9, top_k=20)
    prompts += [(tokens(1 + 37 * i), filtered) for i in range(30)]
    prompts += [(tokens(20), params(max_tokens=4, logprobs=3))]
    prompts += [(tokens(1200), params(max_tokens=2)) for _ in range(6)]
    return [Request(index, *each) for index, each in enumerate(prompts)]


def main() -> None:
    """Print the forms of each family that is named."""
    device = Device(torch.device("cpu"), GpuBackend(), async_scheduling=True, graphs=True)
    for name in sys.argv[1:]:
        warm: set[Form] = set()
        launched: set[Form] = set()
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(FAMILIES[name], Path(folder))
            config = EngineConfig(
                model=Path(folder),
                dtype="bfloat16",
                max_model_len=1 << 15,  # more than the pool of a warm-up holds
                block_size=64,
                max_num_seqs=128,
                max_num_batched_tokens=4096,
                speculate="off",
            )
            engine = load_engine(config, RunPolicy(), device)
            with recorded(warm):
                engine.warm_up()
            with recorded(launched):
                for _ in engine.start(rows()):
                    pass
        new = [list(form) for form in sorted(launched - warm)]
        print(json.dumps({"family": name, "kernels": sorted({k for k, _ in warm}), "new": new}))


if __name__ == "__main__":
    main()
