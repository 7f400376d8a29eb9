"""A cluster of several nodes on this machine, in a process of its own: `nodes.Nodes` talks to it.

Each line of standard input asks for something and is answered by a line of JSON: `add` starts a
node with one CPU, `gone PID` lets go of a node whose raylet was killed. The end of the input ends
the cluster.
"""

import json
import os
import sys
from typing import Any

STORE_BYTES = 80 * 2**20


def _pid(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def serve(num_nodes: int) -> None:
    """Start a head node without CPUs, and so many others; then do as standard input says."""
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    ray_constants.ENABLE_RAY_CLUSTER = False  # all on the loopback interface
    given: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Ray prints is no answer
    cluster = Cluster(
        initialize_head=True, head_node_args={**given, "num_cpus": 0}, shutdown_at_exit=True
    )
    gcs = cluster.head_node.all_processes["gcs_server"][0].process.pid
    print(json.dumps({"address": cluster.address, "gcs": gcs}), file=told)
    for line in ["add"] * num_nodes + [""]:
        if line:
            print(json.dumps({"raylet": _pid(cluster.add_node(num_cpus=1, **given))}), file=told)
    for line in sys.stdin:
        word, _, pid = line.strip().partition(" ")
        if word == "add":
            answer = {"raylet": _pid(cluster.add_node(num_cpus=1, **given))}
        else:
            (node,) = [each for each in cluster.worker_nodes if _pid(each) == int(pid)]
            cluster.remove_node(node, allow_graceful=False)
            answer = {"gone": int(pid)}
        print(json.dumps(answer), file=told)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
