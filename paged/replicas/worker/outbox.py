"""Outbox: what a replica has to tell, packed; written in one thread and read in another."""

import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from pagedrun.paged.replicas.replica_events import Answered, Ended, Failed, ReplicaEvent, Tick
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.values.request import Completion

PACKET_BYTES = 64 * 1024  # small enough to travel inside a reply
PACKET_SECONDS = 0.05
TICK_SECONDS = 1.0


class Outbox:
    """Packs finished rows, `PACKET_BYTES` or `PACKET_SECONDS` of them at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queue: SimpleQueue[ReplicaEvent] = SimpleQueue()
        self._packet: list[Completion] = []
        self._num_bytes = 0
        self._begun = 0.0
        self._record: StepRecord | None = None

    # ── Written by the thread that runs ─────────────────────────────────────────────────────────

    def add(self, completion: Completion) -> None:
        """Take a finished row."""
        if not self._packet:
            self._begun = self._clock()
        self._packet.append(completion)
        self._num_bytes += _num_bytes(completion)
        if self._num_bytes >= PACKET_BYTES:
            self.flush()

    def note_step(self, record: StepRecord) -> None:
        """Take the state after a step; send what has waited long enough."""
        self._record = record
        if self._packet and self._clock() - self._begun >= PACKET_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send the rows that there are."""
        if self._packet:
            self._queue.put(Answered(tuple(self._packet), self._record))
            self._packet, self._num_bytes = [], 0

    def put(self, event: ReplicaEvent) -> None:
        """Send something else, behind the rows that there are."""
        self.flush()
        self._queue.put(event)

    # ── Read by another one ─────────────────────────────────────────────────────────────────────

    def events(self) -> Iterator[ReplicaEvent]:
        """Yield what was sent, and a tick a second, until the replica has ended."""
        tick_at = self._clock() + TICK_SECONDS
        while True:
            try:
                event = self._queue.get(timeout=max(tick_at - self._clock(), 0))
            except Empty:
                tick_at = self._clock() + TICK_SECONDS
                event = Tick(self._record)
            yield event
            if isinstance(event, Ended | Failed):
                return


def _num_bytes(completion: Completion) -> int:
    """Return about how many bytes a completion takes when it travels."""
    num_bytes = 512
    for output in completion.outputs:
        num_bytes += len(output.text) + 8 * len(output.token_ids)
        num_bytes += 256 * len(output.logprobs or ())
    return num_bytes + 256 * len(completion.prompt_logprobs or ()) + 256 * len(completion.scores)
