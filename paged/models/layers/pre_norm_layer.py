"""PreNormLayer: attention and feed-forward, each of which normalises its input."""

from torch import Tensor

from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.layers.attention import SelfAttention
from pagedrun.paged.models.layers.ffn import load_ffn
from pagedrun.paged.models.layers.norm import Norm
from pagedrun.paged.models.layers.rotary_tables import RotaryTables
from pagedrun.paged.models.network.layer_spec import PreNormLayerSpec
from pagedrun.paged.models.weight_source import WeightSource


class PreNormLayer:
    """Both outputs are added to the residual stream, the second by whoever comes next."""

    def __init__(
        self, spec: PreNormLayerSpec, index: int, source: WeightSource, tables: RotaryTables
    ) -> None:
        self._attention_norm = Norm(spec.attention_norm, source)
        self._attention = SelfAttention(spec.attention, index, source, tables)
        self._ffn_norm = Norm(spec.ffn_norm, source)
        self._ffn = load_ffn(spec.ffn, source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        parts = (self._attention_norm, self._attention, self._ffn_norm, self._ffn)
        return sum(part.num_bytes for part in parts)

    def __call__(
        self,
        x: Tensor | None,
        residual: Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        keep: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Layer`."""
        attended = self._attention(self._attention_norm(x, residual), batch, cache)
        if keep is not None:
            attended, residual = attended[keep], residual[keep]
            if not len(keep):
                return attended.new_empty(residual.shape), residual
        x = self._ffn_norm(self._attention.out(attended), residual)
        return self._ffn(x), residual
