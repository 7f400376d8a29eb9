"""ReplicaConfig: on how many engines a job runs, and where."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Annotated

from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.flag import Flag, Panel, check_fields
from pagedrun.paged.values.option_names import option
from pagedrun.paged.values.rules import Rule

MOST_REPLICAS = 4096


def _is_share(value: object) -> bool:
    """Return whether Ray can give so many GPUs: whole ones, or a part of one."""
    return isinstance(value, int | float) and (0 <= value <= 1 or float(value).is_integer())


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Replicas are engines with the same model, in processes of their own, which Ray starts.

    `replicas` is how many, None for none: the engine is then in this process. `ray_address` is that
    of a cluster that runs already; None starts one on this machine and ends it with the run.
    `push_model` sends the model's folder to nodes that do not have it. Raises `UsageError` naming
    the field for a value out of range.
    """

    replicas: Annotated[
        int | None,
        Flag(
            "Run N engines in separate processes, started by Ray.",
            Panel.REPLICAS,
            "N",
            default="one engine, in this process, without Ray",
            low=1,
            high=MOST_REPLICAS,
        ),
    ] = None
    ray_address: Annotated[
        str | None,
        Flag(
            "Ray cluster to run the replicas on, such as 10.0.0.1:6379 or auto.",
            Panel.REPLICAS,
            "ADDRESS",
            default="a private one on this machine that ends with the run",
        ),
    ] = None
    cpus_per_replica: Annotated[
        int | None,
        Flag(
            "CPUs, and threads, of each replica.",
            Panel.REPLICAS,
            "K",
            default="the machine's, divided by the number of replicas",
            low=1,
        ),
    ] = None
    gpus_per_replica: Annotated[
        float | None,
        Flag(
            "GPUs of each replica.",
            Panel.REPLICAS,
            "G",
            default="1 if the model runs on a GPU, else 0",
            rule=Rule(_is_share, "a whole number, or a share below 1"),
        ),
    ] = None
    push_model: Annotated[
        bool,
        Flag("Send the model's folder to nodes that do not have it.", Panel.REPLICAS),
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def refuse_alone(self, names: Container[str]) -> None:
        """Raise `UsageError` if one of the fields `names` says of replicas what nobody asks, as
        there are none."""
        for name in ("ray_address", "cpus_per_replica", "gpus_per_replica", "push_model"):
            if self.replicas is None and name in names and getattr(self, name):
                raise UsageError(f"{option(name)} needs {option('replicas')}", field=name)
