"""What a model of the library consists of, seen by running its code without weights or numbers."""

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, __version__

from pagedrun.paged.models.library.interfaces import OUTLINED, attach, mask_of
from pagedrun.paged.models.library.library_error import said
from pagedrun.paged.models.library.library_spec import LibraryAttention, LibrarySpec
from pagedrun.paged.models.library.row_experts import is_experts
from pagedrun.paged.models.library.token_width import token_width
from pagedrun.paged.models.library.visible_keys import window_of
from pagedrun.paged.models.network.kv_groups import AttentionHeads

_NUM_TOKENS = 4
# What attention may be asked with besides what is looked at; with None nothing is asked.
_HARMLESS = frozenset(
    {
        *("dropout", "position_ids", "use_cache", "is_causal", "cache_position"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "layer_idx"),
    }
)
_NAMES = {"position_bias": "position biases", "indices": "chosen keys"}
_OF_THEIR_OWN = "its layers do not use the library's interface for attention"
_OF_THE_STEP = ("dynamic", "longrope")  # kinds of rope that depend on the longest row of a step


class Unpaged(Exception):
    """The model asks for something that the paged kernels do not compute."""


def outline(config: Any, fields: str) -> LibrarySpec:
    """Return what the model of a library's `config` consists of; `fields` are those that were read.

    Raises `Unpaged` for a model whose layers keep anything but keys and values, or read them in a
    way that the paged kernels do not.
    """
    try:
        with torch.inference_mode():
            seen = _Seen(config)
            logits = seen.run()
    except Unpaged:
        raise
    except Exception as error:  # whatever its code raises where it meets tensors without numbers
        why = f"its code cannot be traced without weights ({said(error)})"
        if OUTLINED in str(error):  # it looks for a class of its own by that name
            why = _OF_THEIR_OWN
        raise Unpaged(why) from error
    return LibrarySpec(
        computed_by=f"transformers {__version__}",
        fields=fields,
        layers=tuple(seen.layers),
        vocab_size=min(logits.shape[-1], seen.model.get_input_embeddings().num_embeddings),
        hidden_size=config.hidden_size,
        max_position_embeddings=config.max_position_embeddings,
        num_weights=sum(each.numel() for each in seen.model.parameters()),
        width=token_width(seen.model, config.hidden_size),
    )


class _Seen:
    """A model without numbers, and the attention that its layers ask for, in order."""

    def __init__(self, config: Any) -> None:
        self._config = config
        with torch.device("meta"):
            self.model: Any = AutoModelForCausalLM.from_config(
                config,
                trust_remote_code=False,
                attn_implementation=OUTLINED,
                experts_implementation=OUTLINED,
            )
        self.model.eval()
        self.layers: list[LibraryAttention] = []
        self._names = {module: name for name, module in self.model.named_modules()}
        for module in self.model.modules():
            attach(module, self._experts if is_experts(module) else self._attend)

    def run(self) -> Tensor:
        """Return the logits of a few tokens; `layers` are known then."""
        self._refuse_what_steps_decide()
        ids = torch.zeros(1, _NUM_TOKENS, dtype=torch.long, device="meta")
        positions = torch.arange(_NUM_TOKENS, device="meta")[None]
        logits: Tensor = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=torch.ones_like(ids),
            use_cache=False,
        ).logits
        if not self.layers:
            raise Unpaged(_OF_THEIR_OWN)
        wanted = self._config.num_hidden_layers
        if len(self.layers) != wanted:
            raise Unpaged(
                f"the library's interface for attention is called {len(self.layers)} times for "
                f"its {wanted} layers; each layer must call it once"
            )
        if self.model.get_decoder() is self.model:
            raise Unpaged("its layers and its head cannot be separated")
        if len({each.name for each in self.layers}) != wanted:
            raise Unpaged("a layer has more than one attention")
        if self._config.max_position_embeddings is None:
            raise Unpaged("its config.json does not state the context length")
        return logits

    def _refuse_what_steps_decide(self) -> None:
        if getattr(self.model, "_is_stateful", False):
            raise Unpaged("it has recurrent layers, which keep a state")
        for module in self.model.modules():
            kinds = getattr(module, "rope_type", None)
            for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
                if kind in _OF_THE_STEP:
                    raise Unpaged(f"its rotations ({kind}) depend on the longest row of a step")

    def _experts(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        return torch.empty_like(x)

    def _attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        kwargs: dict[str, Any],
    ) -> Tensor:
        name = self._names[module]
        asked = {key: each for key, each in kwargs.items() if each is not None}
        scale, softcap = asked.pop("scaling", None), asked.pop("softcap", None)
        sinks = asked.pop("s_aux", None)
        asked.pop("sliding_window", None)  # the mask says it
        if others := sorted(asked.keys() - _HARMLESS):
            names = ", ".join(_NAMES.get(each, each) for each in others)
            raise Unpaged(f"its attention takes {names}")
        _, num_heads, _, head_dim = query.shape
        _, num_kv_heads, _, value_dim = value.shape
        shapes = (1, num_heads, _NUM_TOKENS, head_dim), (1, num_kv_heads, _NUM_TOKENS, head_dim)
        if (query.shape, key.shape) != shapes or value.shape[2] != _NUM_TOKENS or head_dim % 2:
            raise Unpaged(f"its heads have the shapes {[*query.shape]} and {[*key.shape]}")
        if value_dim > head_dim:
            raise Unpaged(f"its values have {value_dim} numbers, its keys {head_dim}")
        if num_heads % num_kv_heads:
            raise Unpaged(f"{num_heads} query heads share {num_kv_heads} key heads")
        if sinks is not None and sinks.shape != (num_heads,):
            raise Unpaged("it does not have one sink per head")
        for number in (scale, softcap):
            if isinstance(number, Tensor):
                raise Unpaged("its scores are scaled by a tensor")
        self.layers.append(
            LibraryAttention(
                name,
                AttentionHeads(num_heads, num_kv_heads, head_dim, self._window(mask)),
                head_dim**-0.5 if scale is None else float(scale),
                None if softcap is None else float(softcap),
            )
        )
        return query.new_empty(1, _NUM_TOKENS, num_heads, value_dim)

    def _window(self, mask: Tensor | None) -> int | None:
        is_visible = mask_of(mask)
        if is_visible is None:
            raise Unpaged("its masks are built by its own code")
        try:
            return window_of(is_visible, self._config.max_position_embeddings or _NUM_TOKENS)
        except ValueError as error:
            raise Unpaged(f"its masks are not sliding windows: {error}") from error
