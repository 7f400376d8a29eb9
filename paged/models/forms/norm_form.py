"""NormForm: the norms of a family."""

from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.network.norm_spec import NormSpec


@dataclass(frozen=True, slots=True)
class NormForm:
    """Each adds `eps` to the mean of squares, and multiplies by `offset` plus its weight."""

    eps: float
    offset: float = 0.0

    @classmethod
    def from_json(cls, config: JsonObject, eps: float = 1e-6, offset: float = 0.0) -> "NormForm":
        """Read `rms_norm_eps`; `eps` is what a family assumes where config.json is silent."""
        return cls(config.number("rms_norm_eps", 0.0, 1.0, eps), offset)

    def named(self, name: str, size: int) -> NormSpec:
        """Return a norm of `size` numbers whose weight is called `name`."""
        return NormSpec(name, size, self.eps, self.offset)
