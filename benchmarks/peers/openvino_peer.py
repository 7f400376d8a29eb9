"""OpenVINO GenAI as a peer of `bench throughput`, in an environment of its own."""

from pathlib import Path

from benchmarks.peers.worker_peer import OPENVINO, WorkerPeer, open_worker


def open_peer(path: Path | None, batch_rows: int | None) -> WorkerPeer:
    """Return OpenVINO with the interpreter `path`; raises `UsageError` without it."""
    return open_worker(OPENVINO, path, batch_rows)
