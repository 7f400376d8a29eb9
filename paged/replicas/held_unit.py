"""HeldUnit: a unit that a replica has, and which of its rows are open."""

from pagedrun.paged.replicas.unit import Unit


class HeldUnit:
    """A unit in the hands of a replica. `running` are the rows that the replica itself has not
    answered, `open` those of which there is no answer at all: their places, by index, in run order.
    `litter` names the units that were made of the same rows after a death."""

    def __init__(self, unit: Unit, replica: int, litter: int | None) -> None:
        self.unit = unit
        self.replica = replica
        self.litter = litter
        self.is_begun = False
        self.open = dict(zip(unit.rows, unit.places, strict=True))
        self.running = set(unit.rows)
