"""vLLM as a peer of `bench throughput`, in an environment of its own."""

from pathlib import Path

from benchmarks.peers.worker_peer import VLLM, WorkerPeer, open_worker


def open_peer(path: Path | None, batch_rows: int | None) -> WorkerPeer:
    """Return vLLM with the interpreter `path`; raises `UsageError` without it."""
    return open_worker(VLLM, path, batch_rows)
