"""How fast the CPU kernels are, as ratios taken in one process.

Run `python benchmarks/bench_kernels_cpu.py`; it takes about a minute.

Shapes are those of one layer of a 0.6 B model (16 query heads, 8 kv heads of 128). Each line sets a
kernel beside what plain PyTorch does with the same data; both alternate, and the best of several
rounds counts, so that a busy neighbour disturbs both alike.
"""

from pagedrun.kernels.threads import configure, prepare_environment

prepare_environment()  # before torch and numba

import time  # noqa: E402
from collections.abc import Callable  # noqa: E402

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from pagedrun.kernels import cpu, reference  # noqa: E402
from pagedrun.kernels.partition import PARTITION_TOKENS  # noqa: E402

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, BLOCK_SIZE = 16, 8, 128, 1024, 16
SCALE = HEAD_DIM**-0.5


def best_times(*functions: Callable[[], object], rounds: int = 15) -> list[float]:
    """Return the best time of each function in seconds, after one unmeasured round."""
    best = [float("inf")] * len(functions)
    for turn in range(rounds + 1):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            if turn > 0:
                best[index] = min(best[index], time.perf_counter() - start)
    return best


def report(name: str, ours: float, theirs: float, note: str = "") -> None:
    print(f"{name:44} {ours * 1e6:9.0f} us {theirs / ours:7.2f} x  {note}")


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def caches(num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (num_tokens // BLOCK_SIZE, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    return torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)


def bench_decode(dtype: torch.dtype, num_rows: int = 16, length: int = 512) -> None:
    """Decode beside SDPA on contiguous KV, and its bytes per second beside a large copy's."""
    copies = 4  # so that the keys and values do not stay in the cache of the processor
    keys, values = caches(copies * num_rows * length, dtype)
    tables = torch.randperm(len(keys)).int().view(copies, num_rows, -1)
    q = torch.randn(num_rows, HEADS, HEAD_DIM).to(dtype)
    rows, lengths = torch.arange(num_rows, dtype=torch.int32), int32(*[length] * num_rows)
    dense = torch.randn(copies, 2, num_rows, KV_HEADS, length, HEAD_DIM).to(dtype)
    source = torch.zeros(1 << 26)
    target = torch.zeros_like(source)
    turn = iter(range(1 << 30))

    def ours() -> Tensor:
        table = tables[next(turn) % copies]
        return cpu.decode_attention(q, keys, values, table, rows, lengths, SCALE, None)

    def theirs() -> Tensor:
        k, v = dense[next(turn) % copies]
        return functional.scaled_dot_product_attention(q.unsqueeze(2), k, v, enable_gqa=True)

    mine, sdpa, copy = best_times(ours, theirs, lambda: target.copy_(source))
    rate = 2 * num_rows * length * KV_HEADS * HEAD_DIM * q.itemsize / mine / 1e9
    roof = 2 * source.numel() * 4 / copy / 1e9
    note = f"contiguous SDPA; {rate:.1f} GB/s read, a copy moves {roof:.1f}"
    report(f"decode_attention {num_rows} x {length} {dtype}", mine, sdpa, note)


def bench_prefill(dtype: torch.dtype, context: int = 1024, size: int = 512) -> None:
    """One chunk after a context, beside SDPA with the same mask on contiguous KV."""
    keys, values = caches(context + size, dtype)
    table = torch.randperm(len(keys)).int()[None]
    q = torch.randn(size, HEADS, HEAD_DIM).to(dtype)
    dense = torch.randn(2, 1, KV_HEADS, context + size, HEAD_DIM).to(dtype)
    mask = torch.ones(size, context + size, dtype=torch.bool).tril(context)
    mine, sdpa = best_times(
        lambda: cpu.prefill_attention(
            q, keys, values, table, int32(0, size), int32(0), int32(context), SCALE, None
        ),
        lambda: functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None], dense[0], dense[1], attn_mask=mask, enable_gqa=True
        ),
        rounds=5,
    )
    partitions = -(-(context + size) // PARTITION_TOKENS)
    flops = 4 * size * HEADS * HEAD_DIM * partitions * PARTITION_TOKENS
    note = f"contiguous SDPA; {flops / mine / 1e9:.0f} GFLOP/s, masked keys included"
    report(f"prefill_attention {size} after {context} {dtype}", mine, sdpa, note)


def bench_linear(dtype: torch.dtype, num_rows: int) -> None:
    weight, x = torch.randn(3 * HIDDEN, HIDDEN).to(dtype), torch.randn(num_rows, HIDDEN).to(dtype)
    layer = cpu.PackedLinear(weight)
    mine, plain = best_times(lambda: layer(x), lambda: functional.linear(x, weight))
    rate = 2 * num_rows * weight.numel() / mine / 1e9
    report(f"PackedLinear {num_rows} rows {dtype}", mine, plain, f"F.linear; {rate:.0f} GFLOP/s")


def bench_sample(name: str, vocab_size: int = 151_936, **params: float) -> None:
    """Eight rows beside the usual sort, cumulative sum and multinomial."""
    logits = torch.randn(8, vocab_size) * 3
    logits[:, :100] += 12  # a peaked distribution, as of a language model

    def column(key: str, default: float, dtype: torch.dtype) -> Tensor:
        return torch.full((8,), params.get(key, default), dtype=dtype)

    streams = [torch.arange(8) for _ in range(4)]
    arguments = (
        column("temperature", 1.0, torch.float32),
        column("top_k", 0, torch.int32),
        column("top_p", 1.0, torch.float32),
        column("min_p", 0.0, torch.float32),
    )

    def theirs() -> Tensor:
        if params.get("temperature") == 0:
            return logits.argmax(-1)
        probs, order = logits.softmax(-1).sort(descending=True)
        probs[probs.cumsum(-1) - probs > params.get("top_p", 1.0)] = 0
        return order.gather(-1, probs.multinomial(1))

    mine, torch_time = best_times(
        lambda: cpu.sample(logits, *arguments, *streams), theirs, rounds=5
    )
    report(f"sample 8 x {vocab_size} {name}", mine, torch_time, "torch")


def bench_overhead(num_tokens: int) -> None:
    """Calls on a model so small that the call itself is what costs."""
    size, head_dim = 64, 16
    x, weight = torch.randn(num_tokens, size), torch.ones(size)
    residual, gate_up = torch.zeros(num_tokens, size), torch.randn(num_tokens, 2 * size)
    shape = (64, 2, BLOCK_SIZE, head_dim)
    keys, values = torch.zeros(shape), torch.zeros(shape)
    cos_sin, positions = torch.randn(64, 2, head_dim // 2), torch.arange(num_tokens)
    q, table = torch.randn(num_tokens, 4, head_dim), torch.arange(64, dtype=torch.int32)[None]
    zeros, lengths = torch.zeros(num_tokens, dtype=torch.int32), int32(*[30] * num_tokens)
    qkv = torch.randn(num_tokens, 8 * head_dim)
    layer = cpu.PackedLinear(torch.randn(size, size))
    calls: dict[str, Callable[[], object]] = {
        "rms_norm": lambda: cpu.rms_norm(x, weight, 1e-6),
        "add_rms_norm": lambda: cpu.add_rms_norm(x, residual, weight, 1e-6),
        "silu_mul": lambda: cpu.silu_mul(gate_up),
        "rotary_store": lambda: cpu.rotary_store(
            qkv, 4, 2, head_dim, cos_sin, positions, positions, keys, values, None, None, 1e-6
        ),
        "decode_attention": lambda: cpu.decode_attention(
            q, keys, values, table, zeros, lengths, 0.25, None
        ),
        "prefill_attention": lambda: cpu.prefill_attention(
            q, keys, values, table, int32(0, num_tokens), zeros[:1], zeros[:1], 0.25, None
        ),
        "PackedLinear": lambda: layer(x),
    }
    for name, call in calls.items():

        def many(call: Callable[[], object] = call) -> None:
            for _ in range(100):
                call()

        (seconds,) = best_times(many, rounds=10)
        print(f"{name:24} {num_tokens:3} tokens {seconds / 100 * 1e6:7.1f} us a call")


def bench_pointwise(dtype: torch.dtype, num_tokens: int = 64) -> None:
    x = torch.randn(num_tokens, HIDDEN).to(dtype)
    weight, gate_up = torch.ones(HIDDEN, dtype=dtype), torch.randn(num_tokens, 6 * HIDDEN).to(dtype)
    residual, other = torch.zeros(num_tokens, HIDDEN), torch.zeros(num_tokens, HIDDEN)
    norm = best_times(
        lambda: cpu.add_rms_norm(x, residual, weight, 1e-6),
        lambda: reference.add_rms_norm(x, other, weight, 1e-6),
    )
    silu = best_times(lambda: cpu.silu_mul(gate_up), lambda: reference.silu_mul(gate_up))
    report(f"add_rms_norm {num_tokens} tokens {dtype}", norm[0], norm[1], "reference")
    report(f"silu_mul {num_tokens} tokens {dtype}", silu[0], silu[1], "reference")


def main() -> None:
    configure()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'kernel':44} {'time':>12} {'beside':>9}")
    for dtype in (torch.bfloat16, torch.float32):
        bench_decode(dtype)
        bench_prefill(dtype)
        for num_rows in (1, 16, 64, 256):
            bench_linear(dtype, num_rows)
        bench_pointwise(dtype)
    bench_sample("greedy", temperature=0.0)
    bench_sample("temperature 1")
    bench_sample("top_p 0.9", top_p=0.9)
    bench_sample("top_k 50, top_p 0.9", top_k=50, top_p=0.9)
    for num_tokens in (1, 16):
        bench_overhead(num_tokens)


if __name__ == "__main__":
    main()
