"""Ray: a cluster that is there or is started, and the replicas in its processes."""
