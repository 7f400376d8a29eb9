"""One private cluster for all tests that need Ray."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.values.engine_config import ReplicaConfig

NUM_CPUS = 3  # of the cluster, whatever the machine has


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """A local cluster, which jobs of this process then use in place of one of their own."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    cluster = RayCluster(ReplicaConfig(replicas=NUM_CPUS), NUM_CPUS)
    yield cluster
    cluster.close()
