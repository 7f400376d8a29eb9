"""DecodeGraph: one step that only decodes, captured for so many rows, and replayed."""

from dataclasses import dataclass

from torch import Tensor

from pagedrun.kernels.prefix_groups import PrefixGroups
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.attention_shapes import attention_shapes
from pagedrun.paged.execution.decode_graphs.decode_buffers import DecodeBuffers
from pagedrun.paged.execution.devices.captured_step import CapturedStep
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.models.model import Model

# Rows for which steps are captured: a step is padded to the next of them. The steps at a run's end
# have ever fewer rows, and there a row too many costs a larger share, so small steps lie close.
_FINE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
_COARSE = 64  # from there on, multiples of this
# Shorter rows do not get narrower block tables, which cost little: fewer shapes are more.
_LEAST_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a captured step has room for.

    Rows, blocks of a row, the partitions that all rows together read with others, and the tokens
    that are forbidden to a row which may not stop yet.
    """

    num_rows: int
    width: int
    num_shared_partitions: int
    num_stop_ids: int = 0

    @classmethod
    def holding(
        cls,
        num_rows: int,
        num_tokens: int,
        num_partitions: int,
        block_size: int,
        num_stop_ids: int = 0,
    ) -> "GraphShape":
        """Return the smallest shape that is captured and holds rows of so many tokens each, of
        which so many partitions are read with others and so many tokens may be forbidden.
        """
        padded = next(
            (each for each in _FINE if each >= num_rows), -(-num_rows // _COARSE) * _COARSE
        )
        width = -(-max(num_tokens, _LEAST_TOKENS) // block_size)
        shared = padded * _power_of_two(num_partitions)
        return cls(padded, _power_of_two(width), shared, _power_of_two(num_stop_ids))


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0


class DecodeGraph:
    """A step of a given shape, and the buffers that it reads and advances.

    Until `capture` is called, `run` computes it kernel by kernel.
    """

    def __init__(
        self, shape: GraphShape, model: Model, cache: KVCache, sampler: Sampler, device: Device
    ) -> None:
        self.buffers = DecodeBuffers.allocate(
            shape.num_rows, shape.width, shape.num_stop_ids, len(cache.groups), device
        )
        self._model = model
        self._sampler = sampler
        self._cache = cache
        self._device = device
        rooms = [shape.num_shared_partitions * spec.reads_together for spec in cache.specs]
        self._attentions = tuple(
            device.kernels.prepare(inputs, attention_shape, room=room)
            for inputs, attention_shape, room in zip(
                self.buffers.attentions, attention_shapes(model, cache), rooms, strict=True
            )
        )
        self._captured: CapturedStep | None = None

    def capture(self, memory: object) -> None:
        """Record the step on the device, with scratch memory to share with other graphs.

        It is computed once for that: the buffers must hold no rows yet.
        """
        self._captured = self._device.capture(self._step, memory)

    def run(self, groups: PrefixGroups | None, *, is_new: bool) -> Tensor:
        """Compute the step for the rows in the buffers; `groups` are their shared prefixes.

        `is_new` says that the groups are not those of the last run; they are None in a shape
        without shared partitions, and in no other. Returns the sampled tokens, [num_rows] int64,
        which the next run overwrites.
        """
        if is_new and groups is not None:
            for attention, spec in zip(self._attentions, self._cache.specs, strict=True):
                if spec.reads_together:
                    attention.regroup(groups)
        if self._captured is None:
            return self._step()
        self._captured.replay()
        return self._captured.ids

    def _step(self) -> Tensor:
        return self.buffers.step(self._model, self._cache, self._attentions, self._sampler)
