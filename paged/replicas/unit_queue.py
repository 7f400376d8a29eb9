"""Assignment of units to replicas, and their reassignment after a replica's death.

A unit is a set of rows of one window that a replica computes together. The queue has no clock, no
threads and no engine: the driver reports events and requests the next unit. The first answer to a
row counts. Answers do not depend on the replica that computes them, so two replicas may have the
same rows.

A replica's death makes all of its unanswered rows suspect. They are cut into up to `PIECES` units
that run apart, so that a row that kills its replica is found in a few deaths: among 4,096 rows it
takes 5, where halves would take 13. A single suspect row runs alone. If its replica dies too, the
machine may still be the cause; after `MAX_ALONE` such deaths the row is given up.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import count, islice

# Assigned units that a replica has not started, so that it never waits for the next one.
UNITS_AHEAD = 2
# Units made of the rows of a dead replica.
PIECES = 8
# Deaths that a job survives: a fixed number, and a number for each replica.
MAX_DEATHS, MAX_DEATHS_A_REPLICA = 10, 2
# Replicas that may die with a single row.
MAX_ALONE = 2
# Minimum number of rows in a copy.
FEW_ROWS = 16
# A replica with work copies rows of units with at least MANY_ROWS of them, so that its batch does
# not run empty; MAX_SEARCHED of the earliest units are searched.
MANY_ROWS, MAX_SEARCHED = 64, 8
# Deaths after which a job without a single answer fails; at least the number of replicas.
MIN_FRUITLESS_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows of one window, in its run order.

    number: rises in the order of creation. window: number of the window. rows: input indices.
    positions: those in the run order of the window. is_suspect: a replica died with these rows; a
    suspect unit of a single row runs alone. is_copy: another replica has the rows as well.
    """

    number: int
    window: int
    rows: Seq[int]
    positions: Seq[int]
    is_suspect: bool = False
    is_copy: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def runs_alone(self) -> bool:
        """Return whether no other unit may run beside this one, so that it explains a death."""
        return self.is_suspect and len(self.rows) == 1


class HeldUnit:
    """Unit assigned to a replica.

    `running`: rows that the replica itself has not answered; `open`: rows that no replica has
    answered, with their positions in run order. `generation`: number of the units made of the same
    rows after a death.
    """

    def __init__(self, unit: Unit, replica: int, generation: int | None) -> None:
        self.unit = unit
        self.replica = replica
        self.generation = generation
        self.is_begun = False
        self.open = dict(zip(unit.rows, unit.positions, strict=True))
        self.running = set(unit.rows)


class UnitQueue:
    """Assigns units in order, then copies of unanswered rows of other replicas."""

    def __init__(self, num_replicas: int) -> None:
        """num_replicas: number of replicas that should run at once."""
        self._num_replicas = num_replicas
        self._numbers = count()
        self._generations = count()
        self._fresh: deque[Unit] = deque()
        self._suspect: deque[tuple[Unit, int]] = deque()  # with its generation
        self._held: dict[int, dict[int, HeldUnit]] = {}  # replica → number of the unit → unit
        self._holders: dict[int, list[HeldUnit]] = {}  # row → holders
        self._deaths: Counter[int] = Counter()  # row → replicas that died with it
        self._alone: Counter[int] = Counter()  # row → replicas that died with it alone
        self._shareable: dict[int, HeldUnit] = {}  # by number, the earliest first
        self._left: Counter[int] = Counter()  # window → rows without an answer
        self._is_ended = False
        self.num_deaths = 0
        self.num_answered = 0

    def add(self, window: int, parts: Iterable[tuple[Seq[int], Seq[int]]]) -> None:
        """Add rows of a window, cut into units: input indices and positions of each."""
        assert not self._is_ended, "nothing was to come any more"
        for rows, positions in parts:
            self._fresh.append(self._unit(window, rows, positions))
            self._left[window] += len(rows)

    def end(self) -> None:
        """Announce that no more rows will be added."""
        self._is_ended = True

    @property
    def is_over(self) -> bool:
        """Return whether every row is answered or given up, and none will be added."""
        return self._is_ended and not self._left

    @property
    def is_lost(self) -> bool:
        """Return whether the job should fail after these deaths."""
        if self.num_deaths > MAX_DEATHS + MAX_DEATHS_A_REPLICA * self._num_replicas:
            return True
        fruitless = max(self._num_replicas, MIN_FRUITLESS_DEATHS)
        return not self.num_answered and self.num_deaths >= fruitless

    @property
    def num_waiting(self) -> int:
        """Number of unassigned units."""
        return len(self._fresh) + len(self._suspect)

    def num_left(self, window: int) -> int:
        """Return the number of open rows of a window."""
        return self._left[window]

    def num_open(self, replica: int) -> int:
        """Return the number of open rows of a replica."""
        return sum(len(held.open) for held in self._held[replica].values())

    def join(self, replica: int) -> None:
        """Add a replica, by a new number."""
        self._held[replica] = {}

    def next(self, replica: int) -> Unit | None:
        """Assign and return the next unit of a replica; None for none now.

        Call it until it returns None; then again when the replica has started a unit, a row was
        answered, rows were added or a replica has died.
        """
        mine = self._held[replica]
        if any(held.unit.runs_alone for held in mine.values()):
            return None
        if sum(not held.is_begun for held in mine.values()) >= UNITS_AHEAD:
            return None
        for position, (unit, generation) in enumerate(self._suspect):
            if unit.runs_alone:
                is_fit = not mine
            else:
                is_fit = all(held.generation != generation for held in mine.values())
            if is_fit:
                del self._suspect[position]
                return self._hand(unit, replica, generation)
        if self._fresh:
            return self._hand(self._fresh.popleft(), replica)
        if not self._is_ended or not all(held.is_begun for held in mine.values()):
            return None
        return self._copied(replica, MANY_ROWS if mine else 1)

    def begin(self, replica: int, number: int) -> None:
        """Record that a replica has started a unit."""
        held = self._held[replica].get(number)
        if held is not None:  # else all of its rows were answered by others
            held.is_begun = True

    def answer(self, replica: int, row: int) -> bool:
        """Record the answer of a row; return whether it is the first, and the replica alive."""
        mine = self._held.get(replica, {})
        for held in [each for each in mine.values() if row in each.running]:
            held.running.remove(row)
            if not held.running:
                del mine[held.unit.number]
        if replica not in self._held or row not in self._holders:
            return False
        holders = self._holders.pop(row)
        for held in holders:
            del held.open[row]
            if not held.open:
                self._shareable.pop(held.unit.number, None)
        self.num_answered += 1
        self._close(row, holders[0].unit.window)
        return True

    def died(self, replica: int) -> list[int]:
        """Remove a dead replica; return the rows that are given up."""
        self.num_deaths += 1
        given_up: list[int] = []
        fresh: dict[int, dict[int, int]] = {}  # window → row → position
        for held in self._held.pop(replica).values():
            self._shareable.pop(held.unit.number, None)
            self._deaths.update(held.open.keys())
            rows = {
                row: position for row, position in held.open.items() if self._release_row(row, held)
            }
            if held.unit.runs_alone:
                self._alone.update(rows.keys())
            if any(self._alone[row] == MAX_ALONE for row in rows):
                (row,) = rows
                self._close(row, held.unit.window)
                given_up.append(row)
            elif held.unit.is_suspect:
                self._suspect.extend(self._cut(held.unit.window, rows))
            else:
                fresh.setdefault(held.unit.window, {}).update(rows)
        for window, rows in fresh.items():
            self._suspect.extend(self._cut(window, rows))
        return given_up

    def deaths_of(self, row: int) -> int:
        """Return the number of replicas that died while they had an open row."""
        return self._deaths[row]

    def _unit(
        self,
        window: int,
        rows: Seq[int],
        positions: Seq[int],
        *,
        is_suspect: bool = False,
        is_copy: bool = False,
    ) -> Unit:
        number = next(self._numbers)
        return Unit(number, window, rows, positions, is_suspect=is_suspect, is_copy=is_copy)

    def _hand(self, unit: Unit, replica: int, generation: int | None = None) -> Unit:
        held = HeldUnit(unit, replica, generation)
        self._held[replica][unit.number] = held
        for row in unit.rows:
            self._holders.setdefault(row, []).append(held)
        if not unit.is_suspect and not unit.is_copy:
            self._shareable[unit.number] = held
        return unit

    def _copied(self, replica: int, least: int) -> Unit | None:
        """Return a copy of rows from the earliest assigned unit with at least `least` rows that one
        other replica alone has: its last rows, one replica's share of them, so that all idle
        replicas can help. Rows of a dead replica are not copied, since they might kill this one
        too."""
        searched = list(islice(self._shareable.values(), MAX_SEARCHED))
        for held in searched:
            alone = [row for row in held.open if self._may_copy(row)]
            if not alone:
                del self._shareable[held.unit.number]
            elif len(alone) >= least and held.replica != replica:
                alone = alone[-max(len(alone) // len(self._held), FEW_ROWS) :]
                positions = [held.open[row] for row in alone]
                copy = self._unit(held.unit.window, alone, positions, is_copy=True)
                return self._hand(copy, replica)
        has_more = any(held.unit.number not in self._shareable for held in searched)
        return self._copied(replica, least) if has_more else None

    def _may_copy(self, row: int) -> bool:
        return len(self._holders[row]) == 1 and not self._deaths[row]

    def _cut(self, window: int, rows: dict[int, int]) -> Iterator[tuple[Unit, int]]:
        """Yield the units made of the rows of a dead replica, which run apart, and their
        generation."""
        generation = next(self._generations)
        ordered = iter(sorted(rows.items(), key=lambda item: item[1]))
        num_pieces = min(PIECES, len(rows))
        for piece in range(num_pieces):
            size = len(rows) * (piece + 1) // num_pieces - len(rows) * piece // num_pieces
            indices, positions = zip(*islice(ordered, size), strict=True)
            yield self._unit(window, indices, positions, is_suspect=True), generation

    def _release_row(self, row: int, held: HeldUnit) -> bool:
        """Remove a row from a dead replica; return whether no other one has it."""
        holders = self._holders[row]
        holders.remove(held)
        if holders:
            return False
        del self._holders[row]
        return True

    def _close(self, row: int, window: int) -> None:
        self._deaths.pop(row, None)
        self._alone.pop(row, None)
        self._left[window] -= 1
        if not self._left[window]:
            del self._left[window]
