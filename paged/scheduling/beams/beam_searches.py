"""BeamSearches: the searches of all requests with beams that are in the run."""

from collections.abc import Iterator

from pagedrun.paged.scheduling.beams.beam_search import BeamSearch, Float32s, Int64s
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.stopping import StopRule
from pagedrun.paged.values.request import Request, SampleOutput


class BeamSearches:
    """Chooses which beams go on behind a step, and has the scheduler fork and end them."""

    def __init__(self, scheduler: Scheduler, stop_rule: StopRule) -> None:
        self._scheduler = scheduler
        self._stop_rule = stop_rule
        self._searches: dict[int, BeamSearch] = {}  # by row

    def begin(self, request: Request) -> None:
        """Take note of a request, if it is answered by beams."""
        params = request.params
        if params.has_beams:
            stops = self._stop_rule.stop_token_ids(params)
            self._searches[request.index] = BeamSearch(params, stops)

    def end(self, row: int) -> None:
        """Forget a request, by its index."""
        self._searches.pop(row, None)

    def advance(
        self, places: Int64s, top_ids: Int64s, top_scores: Float32s
    ) -> Iterator[tuple[Sequence, SampleOutput]]:
        """Let beams go on; yield the answers of searches that are over, best first, each with the
        first of the sequences that it was found by.

        places: [num_beams] int64, the beams of a step. top_ids, top_scores: [num_beams, num_top],
        int64 and float32, the likeliest tokens behind each and their log-probabilities.
        """
        scheduler, table = self._scheduler, self._scheduler.table
        draw_of = {place: draw for draw, place in enumerate(places.tolist())}
        for row in dict.fromkeys(table.row[places].tolist()):
            beams, search = scheduler.beams(row), self._searches[row]
            draws = [draw_of[beam.place] for beam in beams]
            tokens = table.outputs[places[draws], : search.num_tokens]
            going = search.advance(tokens, top_ids[draws], top_scores[draws])
            if going:
                scheduler.branch(row, going)
                continue
            first = beams[0]
            scheduler.end_beams(row)
            for index, beam in enumerate(search.finished[: first.request.params.n]):
                yield first, self._stop_rule.beam_output(first.request, index, beam)
