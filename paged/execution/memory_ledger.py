"""MemoryLedger: where the device's memory went."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.decode_graphs.decode_graphs import DecodeGraphs
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.models.model import Model
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.report.record.report_sections import LedgerFigures
from pagedrun.paged.report.record.weight_figures import WeightFigures, weight_figures


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Adds up what a run holds; `budget` is what its pool was sized by.

    `stored_weight_bytes` is what the weights take in their files, None where they are from none.
    `graphs` are the run's, if there are any.
    """

    model: Model
    cache: KVCache
    device: Device
    budget: MemoryBudget
    stored_weight_bytes: int | None = None
    graphs: DecodeGraphs | None = None

    @property
    def weights(self) -> WeightFigures:
        """The report's `weights` object."""
        count, held = self.model.network.num_weights, self.model.num_bytes
        return weight_figures(count, self.stored_weight_bytes, held)

    def report(
        self, peak_blocks: Seq[int], peak_slots: int, step_tokens: int, step_logits: int
    ) -> LedgerFigures:
        """Return the report's `memory` object, in bytes.

        peak_blocks: the most blocks of each group's pool that were held. peak_slots: the most of
        recurrent layers' states. step_tokens, step_logits: of the largest step. What the process
        had in use at its peak beyond weights, activations, pool and states is `other`. On the host
        only the part of a pool that was touched has been in use.
        """
        weights = self.model.num_bytes
        activations = self.budget.activations  # measured, or reckoned from the largest step
        if activations is None:
            activations = self.model.activation_bytes(step_tokens, step_logits)
        pools = zip(self.cache.groups, peak_blocks, strict=True)
        touched = sum(memory.bytes_per_block * count for memory, count in pools)
        held = self.device.bytes_held(self.cache.num_bytes, touched)
        states = self.cache.states
        if states is not None:
            touched = states.bytes_per_slot * peak_slots
            held += self.device.bytes_held(states.num_bytes, touched)
        in_graphs = 0 if self.graphs is None else self.graphs.num_bytes
        in_use = self.device.bytes_in_use()
        figures: LedgerFigures = {
            "weights": weights,
            "kv_pool": self.cache.num_bytes,
            "activations_peak": activations,
            "other": max(in_use - weights - activations - held - in_graphs, 0),
            "device_total": self.budget.total,
        }
        if states is not None:
            figures["states"] = states.num_bytes
        if self.budget.is_filled:
            figures["graphs"] = in_graphs
            figures["decoding_room"] = self.budget.decode_states + self.budget.graphs
        return figures
