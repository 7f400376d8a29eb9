"""Attention of others on the sizes of `bench kernels`: cuDNN's, FlashInfer's, FlashAttention 3's.

    python benchmarks/on_gpu/peer_kernels.py

prefix: many queries over one shared prefix, nothing masked. prefill: a causal prompt. decode: rows
over contexts of their own. Each that is not there, or fails, says so in place of a figure. Without
a GPU, torch's own attention on small tensors shows that this runs.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pagedrun.paged.bench.kernel_timing import GpuStopwatch, Stopwatch, error_line

HEADS, KV_HEADS, HEAD_DIM, TURNS = 32, 8, 128, 15  # those of Qwen3-8B
FLUSHED = 64 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """`rows` queries in each of `batch` sequences, over `keys` keys each."""

    kind: str
    batch: int
    rows: int
    keys: int

    @property
    def flops(self) -> float:
        """Two products; half of a square where what comes later is masked."""
        pairs = self.batch * self.rows * self.keys * (0.5 if self.kind == "prefill" else 1.0)
        return 4.0 * pairs * HEADS * HEAD_DIM

    @property
    def num_bytes(self) -> float:
        """Keys and values, queries and answers, in 16 bits."""
        return 4.0 * HEAD_DIM * self.batch * (self.keys * KV_HEADS + self.rows * HEADS)


GPU_SIZES = (
    *(Size("prefix", 1, rows, keys) for rows in (256, 1024) for keys in (1024, 4096, 16384)),
    *(Size("prefill", 1, size, size) for size in (2048, 8192)),
    *(Size("decode", rows, 1, keys) for rows in (256, 1024) for keys in (128, 512)),
)
CPU_SIZES = (Size("prefix", 1, 4, 64), Size("prefill", 1, 16, 16), Size("decode", 2, 1, 32))


def main() -> None:
    """Measure the kernels at hand, and print the figures."""
    is_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if is_gpu else "cpu")
    stopwatch: Stopwatch = GpuStopwatch(FLUSHED) if is_gpu else Stopwatch(1 << 16)
    results = []
    with torch.inference_mode():
        for size in GPU_SIZES if is_gpu else CPU_SIZES:
            for name, build in contenders(is_gpu).items():
                line = {"kind": size.kind, "batch": size.batch, "rows": size.rows}
                line |= {"keys": size.keys, "contender": name}
                results.append({**line, **measured(build, size, device, stopwatch)})
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"attention": results, "table": list(table(results))}))


Build = Callable[[Size, Tensor, Tensor, Tensor], Callable[[], object]]


def contenders(is_gpu: bool) -> dict[str, Build]:
    """Return what makes a call of each contender from q, k, v [batch, tokens, heads, head_dim]."""
    if not is_gpu:
        return {"torch": partial(torch_attention, SDPBackend.MATH)}
    return {
        "cuDNN": partial(torch_attention, SDPBackend.CUDNN_ATTENTION),
        "FlashAttention 2 in torch": partial(torch_attention, SDPBackend.FLASH_ATTENTION),
        "FlashAttention 3": flash_attention_3,
        "FlashInfer": flash_infer,
    }


def measured(build: Build, size: Size, device: torch.device, watch: Stopwatch) -> dict[str, Any]:
    """Return the figures of a contender, or why it has none."""

    def numbers(tokens: int, heads: int) -> Tensor:
        shape = (size.batch, tokens, heads, HEAD_DIM)
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    q, k, v = numbers(size.rows, HEADS), *(numbers(size.keys, KV_HEADS) for _ in range(2))
    try:
        call = build(size, q, k, v)
        call()
        [taken] = watch.seconds([watch.prepare(call)], TURNS)
    except Exception as error:  # a package that is not there, a size that it does not take
        return {"failed": error_line(error)}
    seconds = median(taken)
    return {
        "ms": seconds * 1e3,
        "tflop_per_s": size.flops / seconds / 1e12,
        "gb_per_s": size.num_bytes / seconds / 1e9,
    }


def torch_attention(
    backend: SDPBackend, size: Size, q: Tensor, k: Tensor, v: Tensor
) -> Callable[[], object]:
    """Return a call of torch's attention by one of its backends."""
    queries, keys, values = (each.transpose(1, 2) for each in (q, k, v))

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                queries, keys, values, is_causal=size.kind == "prefill", enable_gqa=True
            )

    return call


def flash_attention_3(size: Size, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    """Return a call of FlashAttention 3, whose package is named so."""
    module = importlib.import_module("flash_attn_interface")
    return partial(module.flash_attn_func, q, k, v, causal=size.kind == "prefill")


def flash_infer(size: Size, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    """Return a call of FlashInfer: one sequence, or a batch of decoding rows in pages."""
    module = importlib.import_module("flashinfer")
    if size.kind != "decode":
        causal = size.kind == "prefill"
        return partial(module.single_prefill_with_kv_cache, q[0], k[0], v[0], causal=causal)
    page = 64
    work = torch.empty(256 << 20, dtype=torch.uint8, device=q.device)
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(work, "NHD", use_tensor_cores=True)
    pages = size.keys // page
    counts = torch.arange(size.batch + 1, dtype=torch.int32, device=q.device) * pages
    indices = torch.randperm(size.batch * pages, device=q.device).int()
    last = torch.full((size.batch,), page, dtype=torch.int32, device=q.device)
    wrapper.plan(counts, indices, last, HEADS, KV_HEADS, HEAD_DIM, page, q_data_type=q.dtype)
    cache = torch.stack([each.reshape(-1, page, KV_HEADS, HEAD_DIM) for each in (k, v)], dim=1)
    return partial(wrapper.run, q[:, 0], cache)


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| kind | batch | rows | keys | contender | ms | TFLOP/s | GB/s |"
    yield "|:--|--:|--:|--:|:--|--:|--:|--:|"
    for each in results:
        sizes = f"| {each['kind']} | {each['batch']} | {each['rows']} | {each['keys']} "
        if "failed" in each:
            yield f"{sizes}| {each['contender']} | {each['failed'].replace('|', '/')} | | |"
            continue
        figures = f"{each['ms']:.4f} | {each['tflop_per_s']:.1f} | {each['gb_per_s']:.0f} |"
        yield f"{sizes}| {each['contender']} | {figures}"


if __name__ == "__main__":
    main()
