"""Admission without a prediction, so that running sequences must give way."""

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from pagedrun.paged.scheduling.sequence_table import SequenceTable


class AdmitAll(OutputLengthPredictor):
    """Lets in every sequence that fits now, however long the answers may become."""

    def allows(self, pool: BlockPool, table: SequenceTable, places: Int64s, num_taken: int) -> bool:
        return True
