"""From a configuration to an engine whose replicas are being started by Ray."""

from collections.abc import Iterable
from pathlib import Path

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.replicas.cluster.pushed_folder import PushedFolder
from pagedrun.paged.replicas.cluster.ray_cluster import RayCluster
from pagedrun.paged.replicas.cluster.ray_pool import RayPool
from pagedrun.paged.replicas.crew import Crew
from pagedrun.paged.replicas.replica_engine import ReplicaEngine
from pagedrun.paged.replicas.worker.replica_model import ReplicaModel
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.errors import EngineError, option


def start_replicas(
    config: EngineConfig, tokenizer: Path, replicas: ReplicaConfig, stall_timeout_s: float
) -> ReplicaEngine:
    """Start or join a cluster, and ask it for the replicas.

    tokenizer: its folder. stall_timeout_s: the most seconds that a step of a replica may take, 0
    for any. Raises `UsageError` if Ray is not installed or the cluster cannot be joined.
    """
    num_wanted = replicas.replicas or 1
    threads = replicas.cpus_per_replica or max(1, cpu_quota() // num_wanted)
    cluster = RayCluster(replicas, num_cpus=num_wanted * threads)
    if replicas.cpus_per_replica is None and not cluster.is_local:
        threads = _share_of_a_node(cluster, num_wanted)
    num_gpus = replicas.gpus_per_replica
    if num_gpus is None:
        num_gpus = float(_is_on_gpu(config))
    pushed: dict[Path, PushedFolder] = {}
    if replicas.push_model:
        pushed = _pushed(cluster, {config.model, tokenizer})
    model = ReplicaModel(config, tokenizer, threads, pushed)
    return ReplicaEngine(
        config, Crew(RayPool(cluster, model, num_wanted, num_gpus), stall_timeout_s)
    )


def _pushed(cluster: RayCluster, folders: Iterable[Path]) -> dict[Path, PushedFolder]:
    """Put folders into the object store."""
    try:
        return {each: PushedFolder.of(each, cluster.ray.put) for each in folders}
    except cluster.ray.exceptions.RayError as error:
        cluster.close()
        told = str(error).strip().partition("\n")[0]
        raise EngineError(
            f"{option('push_model')}: the model does not fit into the cluster's object store "
            f"({told}); put it on every node, in the same folder"
        ) from error


def _share_of_a_node(cluster: RayCluster, num_wanted: int) -> int:
    """Return the CPUs of the smallest node, divided by the replicas that each is to have."""
    cpus = [int(node["CPU"]) for node in cluster.nodes() if node.get("CPU", 0) >= 1]
    if not cpus:
        return 1
    return max(1, min(cpus) // -(-num_wanted // len(cpus)))


def _is_on_gpu(config: EngineConfig) -> bool:
    """Return whether the model would run on a GPU, as far as this machine tells."""
    if config.device != "auto":
        return config.device == "cuda"
    import torch

    return torch.cuda.is_available()
