"""What a plan says of several replicas, in lines."""

from pagedrun.paged.planning.forecast_sections import ReplicaFigures


def replica_lines(replicas: ReplicaFigures) -> list[tuple[str, str, str]]:
    """Return label, value and note of each figure."""
    again, most = replicas["split_prefix_tokens"], replicas["computed_at_most"]
    efficiency = f"{replicas['expected_efficiency']:.1%}"
    return [
        ("units", f"{replicas['units']:,}", "rows assigned to a replica together"),
        ("computed again", f"{again:,}", "at most: prefixes with rows in several units"),
        ("to compute in all", f"{most:,}", "prompt tokens, at most, if no row runs twice"),
        ("expected efficiency", efficiency, "of equally fast replicas, without loading the model"),
    ]
