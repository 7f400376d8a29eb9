"""Balance of a file's rows over many simulated replicas.

The planner and the queue of units are the real ones. There is no model and no clock: time is
counted in rows of mean work on a replica of usual speed.

An admitted row occupies one slot of its replica until its answer is complete; a prefix that the
replica has not computed before delays all slots. With --slow some replicas have a third of the
usual speed; with --dying some die once during the run and are replaced after a while.

Efficiency is the time of all rows with each prefix computed once, divided by the time available on
all replicas: 1 if no replica ever waits, repeats or computes in vain.

Usage: python benchmarks/replicas_simulated.py [--rows N] [--replicas 1,8,64] [--slow SHARE]
       [--dying SHARE] [--seats N] [--seed N]
"""

import argparse
import resource
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.plan_part import PlanPart, num_common
from pagedrun.paged.planning.units import SplitPrefixes, unit_cuts
from pagedrun.paged.replicas.unit_queue import Unit, UnitQueue
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

# A token of the planned prompts has the place of so many, or a million rows would not fit.
TOKENS_EACH = 64
PREFIX, OWN = 32, 2  # 2,048 tokens in common with the group, 128 of its own
NEW_TOKENS = 64  # of an answer, on the average
A_NEW_TOKEN = 8  # takes about as long as so many of a prompt
SLOW_SPEED = 1 / 3
RESTART = 200.0  # time until a dead replica is replaced


def make_plan(num_rows: int, num_groups: int, seed: int) -> Plan:
    """Return the plan of rows in groups whose sizes follow Zipf's law, in random order."""
    draw = np.random.default_rng(seed)
    weights = 1 / np.arange(1, num_groups + 1)
    groups = draw.choice(num_groups, size=num_rows, p=weights / weights.sum()).tolist()
    stems = [tuple(draw.integers(30_000, size=PREFIX).tolist()) for _ in range(num_groups)]
    params = SamplingParams(max_tokens=4 * NEW_TOKENS, temperature=1.0)
    requests = [
        Request(row, (*stems[group], row >> 10, row & 1023), params)
        for row, group in enumerate(groups)
    ]
    return Plan(requests, PlanRules(1))


@dataclass
class Replica:
    """A virtual replica. `owed` is the time for which prefixes still stall each batch slot."""

    number: int
    speed: float
    seats: int
    units: deque[Unit] = field(default_factory=deque)
    rows: deque[tuple[int, int]] = field(default_factory=deque)  # let in next: index, new tokens
    last: Request | None = None
    stalls: deque[tuple[float, int]] = field(default_factory=deque)  # time, seats that still pay


class Cluster:
    """Simulated replicas, their units and their clock."""

    def __init__(
        self,
        plan: Plan,
        parts: PlanPart,
        answers: np.ndarray,
        num_replicas: int,
        args: argparse.Namespace,
        *,
        fixed: int | None = None,
    ) -> None:
        self.plan, self.parts, self.answers = plan, parts, answers
        self.seats = args.seats
        self.queue = UnitQueue(num_replicas)
        self.num_computed = 0
        self.num_wasted = 0
        common = parts.num_common_tokens
        if fixed:
            cuts = np.append(np.arange(0, len(plan), fixed), len(plan))
        else:
            cuts = unit_cuts(common, num_replicas)
        self.num_units = len(cuts) - 1
        split = SplitPrefixes(num_replicas)
        split.add(common, cuts)
        self.num_split = split.num_tokens
        indices = np.array([request.index for request in parts.requests])
        for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            self.queue.add(0, [(indices[begin:end].tolist(), range(begin, end))])
        self.queue.end()
        distinct = int((parts.num_tokens - common).sum())
        self.work = distinct * TOKENS_EACH + int(answers.sum()) * A_NEW_TOKEN
        self.mean = self.work / len(plan)
        draw = np.random.default_rng(args.seed)
        num_slow = int(num_replicas * args.slow)
        speeds = [SLOW_SPEED] * num_slow + [1.0] * (num_replicas - num_slow)
        self.ideal = len(plan) / sum(speeds)
        self.heap: list[tuple[float, int, int, int]] = []  # when, in which order, who, which row
        self.order = count()
        self.replicas: dict[int, Replica] = {}
        self.numbers = count()
        self.hungry: set[int] = set()
        self.now = 0.0
        for speed in speeds:
            self.join(speed)
        num_dying = int(num_replicas * args.dying)
        for number in draw.choice(num_replicas, size=num_dying, replace=False).tolist():
            self.push(float(draw.uniform(0, self.ideal)), number, -1)

    def push(self, when: float, number: int, row: int) -> None:
        heappush(self.heap, (when, next(self.order), number, row))

    def join(self, speed: float) -> None:
        number = next(self.numbers)
        self.replicas[number] = Replica(number, speed, self.seats)
        self.queue.join(number)

    def run(self) -> float:
        """Return the time of all rows."""
        for replica in list(self.replicas.values()):
            self.fill(replica)
        while not self.queue.is_over:
            self.now, _, number, row = heappop(self.heap)
            if row == -2:
                self.join(1.0)
                self.fill(self.replicas[max(self.replicas)])
            elif number not in self.replicas:
                continue
            elif row == -1:
                self.queue.died(number)
                del self.replicas[number]
                self.hungry.discard(number)
                self.push(self.now + RESTART, 0, -2)
                self.feed_hungry()
            else:
                replica = self.replicas[number]
                replica.seats += 1
                if not self.queue.answer(number, row):
                    self.num_wasted += 1
                self.fill(replica)
                if self.hungry and self.queue.num_waiting:
                    self.feed_hungry()
        return self.now

    def feed_hungry(self) -> None:
        for number in sorted(self.hungry):
            self.fill(self.replicas[number])

    def fill(self, replica: Replica) -> None:
        """Admit rows while batch slots are free."""
        self.hungry.discard(replica.number)
        while replica.seats:
            if not replica.rows and not self.take(replica):
                self.hungry.add(replica.number)
                return
            row, work = replica.rows.popleft()
            stall = 0.0
            for place, (cost, left) in enumerate(list(replica.stalls)):
                stall += cost
                replica.stalls[place] = (cost, left - 1)
            while replica.stalls and not replica.stalls[0][1]:
                replica.stalls.popleft()
            took = (work / self.mean * self.seats + stall) / replica.speed
            replica.seats -= 1
            self.push(self.now + took, replica.number, row)

    def take(self, replica: Replica) -> bool:
        """Begin the next unit, if there is one."""
        self.ask(replica)
        if not replica.units:
            return False
        unit = replica.units.popleft()
        self.queue.begin(replica.number, unit.number)
        part = self.plan.part_at(np.asarray(unit.positions))
        common = part.num_common_tokens.copy()
        if replica.last is not None:
            first = part.requests[0].prompt_token_ids
            common[0] = num_common(replica.last.prompt_token_ids, first)
        replica.last = part.requests[-1]
        computed = part.num_tokens - common
        self.num_computed += int(computed.sum())
        own = np.minimum(computed, OWN)
        for prefix in (computed - own)[computed > own].tolist():
            # It takes the whole device: each seat waits as long.
            replica.stalls.append((prefix * TOKENS_EACH / self.mean, self.seats))
        new = self.answers[np.asarray(unit.rows)] * A_NEW_TOKEN
        work = (own * TOKENS_EACH + new).tolist()
        replica.rows.extend(zip(unit.rows, work, strict=True))
        self.ask(replica)
        return True

    def ask(self, replica: Replica) -> None:
        while (unit := self.queue.next(replica.number)) is not None:
            replica.units.append(unit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--replicas", default="1,8,64,128,256,512,1000")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--dying", type=float, default=0.0)
    parser.add_argument("--seats", type=int, default=32)
    parser.add_argument("--fixed", type=int, default=0, help="rows a unit, in place of guided ones")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began = time.process_time()
    plan = make_plan(args.rows, args.groups, args.seed)
    whole = plan.part(0, len(plan))
    planned = time.process_time() - began
    draw = np.random.default_rng(args.seed)
    answers = np.minimum(draw.geometric(1 / NEW_TOKENS, size=args.rows), 4 * NEW_TOKENS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{args.rows} rows planned in {planned:.0f} s of processor time; {peak:.2f} GiB at most")
    print("| replicas | units | efficiency | prefix tokens again | plan's bound | wasted | CPU s |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    distinct = int((whole.num_tokens - whole.num_common_tokens).sum())
    for num_replicas in map(int, args.replicas.split(",")):
        began = time.process_time()
        cluster = Cluster(plan, whole, answers, num_replicas, args, fixed=args.fixed or None)
        took = cluster.run()
        again = cluster.num_computed - distinct
        print(
            f"| {num_replicas} | {cluster.num_units} | {cluster.ideal / took:.3f} | "
            f"{again * TOKENS_EACH} | {cluster.num_split * TOKENS_EACH} | "
            f"{cluster.num_wasted / args.rows:.2%} | {time.process_time() - began:.0f} |"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
