"""TransformersModel: a Transformers model over paged KV memory; loading of both kinds of models."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from pagedrun.paged.cache.kv_cache import CacheDevice, KVCache
from pagedrun.paged.models.checkpoint.checkpoint import BaseCheckpoint
from pagedrun.paged.models.model import ForwardBatch, Model
from pagedrun.paged.models.transformers_backend.checks import (
    LogitsMismatch,
    ProbeRun,
    expected_logits,
    largest_difference,
    rows_depend_on_batch,
)
from pagedrun.paged.models.transformers_backend.config_fields import (
    error_summary,
    quiet_transformers,
    transformers_config,
)
from pagedrun.paged.models.transformers_backend.hooks import (
    PAGED,
    PagedAttention,
    RowExperts,
    RowOps,
    Step,
    attach,
    can_replace_experts,
    is_experts,
)
from pagedrun.paged.models.transformers_backend.plain_model import PlainModel
from pagedrun.paged.models.transformers_backend.specs import PlainSpec, TransformersSpec
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.report_parts import TransformersFigures


class TransformersModel(Model):
    """A Transformers model over paged KV memory.

    `causal_lm` has its weights on the device. Matrix products and experts are pagedrun's, and so is
    attention over the paged cache. The tokens of a step are one sequence, each at its own position;
    all other code of the model treats tokens independently.
    """

    def __init__(
        self, network: TransformersSpec, causal_lm: Any, device: CacheDevice, *, row_invariant: bool
    ) -> None:
        """Replace the ops of the model, and compare its logits with those before.

        Raises `LogitsMismatch` if they differ by more than rounding.
        """
        kernels = device.kernels
        self.network: TransformersSpec = network
        self.dtype: torch.dtype = causal_lm.dtype
        expected = expected_logits(causal_lm, network.vocab_size)
        self._step = Step()
        self._ops = RowOps(causal_lm, kernels, row_invariant=row_invariant)
        for layer, index in zip(network.layers, network.cache_indices, strict=True):
            attention = PagedAttention(layer, index, device, self._step)
            attach(causal_lm.get_submodule(layer.name), attention)
        causal_lm.set_attn_implementation(PAGED)
        experts = [module for module in causal_lm.modules() if is_experts(module)]
        if all(can_replace_experts(module) for module in experts):
            for module in experts:
                attach(module, RowExperts(module, kernels))
            causal_lm.set_experts_implementation(PAGED)
        self._trunk = _Trunk.of(causal_lm)
        self._causal_lm = causal_lm
        released = self._ops.released
        held = (each.nbytes for each in causal_lm.parameters() if each not in released)
        self.num_bytes = sum(held) + sum(each.num_bytes for each in self._ops.products)
        trial = ProbeRun(self, device, network.hidden_size)
        self.library: TransformersFigures = {
            "computed_by": network.computed_by,
            "path": "paged",
            "largest_difference": largest_difference(trial, expected),
            "rows_depend_on_batch": rows_depend_on_batch(trial),
        }

    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """See `Model`."""
        self._step.now = batch, cache
        try:
            with self._ops:
                states = self._trunk.run(batch.input_ids, batch.positions)
        finally:
            self._step.now = None
        return states[batch.logits_rows]

    def head(self, hidden: Tensor) -> Tensor:
        """See `Model`."""
        if not len(hidden):
            return hidden.new_empty(0, self.network.vocab_size)
        with self._ops, self._trunk.feeding_head(hidden):
            logits: Tensor = self._causal_lm(
                input_ids=torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device),
                use_cache=False,
            ).logits
        return logits[0, :, : self.network.vocab_size].to(hidden.dtype)


class _Trunk(nn.Module):
    """The decoder of a model: runs it, or returns given hidden states to the head.

    The head is more than a product: some models scale or cap logits. So the code of Transformers
    runs on the selected rows of hidden states.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self._kind: Any = None  # class of the decoder's output
        self._given: Tensor | None = None

    @classmethod
    def of(cls, causal_lm: Any) -> "_Trunk":
        """Replace the decoder of a model."""
        decoder = causal_lm.get_decoder()
        [name] = [name for name, module in causal_lm.named_modules() if module is decoder]
        parent, _, last = name.rpartition(".")
        trunk = cls(decoder)
        setattr(causal_lm.get_submodule(parent), last, trunk)
        return trunk

    def run(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return the hidden states of tokens [num_tokens], [num_tokens, hidden_size]."""
        output = self.decoder(
            input_ids=input_ids[None], position_ids=positions[None], use_cache=False
        )
        self._kind = type(output)
        states: Tensor = output.last_hidden_state
        return states[0]

    @contextmanager
    def feeding_head(self, hidden: Tensor) -> Iterator[None]:
        """Let the decoder return these hidden states, [num_rows, hidden_size]."""
        self._given = hidden
        try:
            yield
        finally:
            self._given = None

    def forward(self, *_: Any, **__: Any) -> Any:
        """Return the hidden states of `feeding_head`."""
        assert self._given is not None, "the layers run by themselves"
        return self._kind(last_hidden_state=self._given[None])


_MAX_SHOWN_NAMES = 4


def load_transformers(
    network: TransformersSpec | PlainSpec,
    checkpoint: BaseCheckpoint,
    dtype: torch.dtype,
    device: CacheDevice,
    *,
    row_invariant: bool,
) -> TransformersModel | PlainModel:
    """Return the model of a checkpoint's folder with its weights, cast to `dtype`.

    Transformers gets fields of config.json and tensors of the safetensors files, and opens no file
    itself. `row_invariant` selects row-invariant products for paged models. Raises `ModelError` if
    the tensors do not belong to the model, or if its logits differ from those of Transformers
    alone.
    """
    folder = checkpoint.path
    config = transformers_config(str(folder / "config.json"), network.fields)
    with quiet_transformers():
        causal_lm = _load_causal_lm(config, checkpoint, dtype).to(device.torch_device).eval()
    over = "with its own caches" if isinstance(network, PlainSpec) else "with paged memory"
    try:
        if isinstance(network, PlainSpec):
            return PlainModel(network, causal_lm)
        return TransformersModel(network, causal_lm, device, row_invariant=row_invariant)
    except Exception as error:  # any error of its code when called by ours
        why = (
            str(error)
            if isinstance(error, LogitsMismatch)
            else f"it fails there ({error_summary(error)})"
        )
        raise ModelError(
            f"{folder}: model_type {config.model_type!r} cannot be run by Transformers' code "
            f"{over}: {why}"
        ) from error


def _load_causal_lm(config: Any, checkpoint: BaseCheckpoint, dtype: torch.dtype) -> Any:
    """Return the Transformers model on the host, with eager attention."""
    with torch.device("meta"):
        kind = type(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
    try:
        causal_lm, loading = kind.from_pretrained(
            None,
            config=config,
            state_dict={name: checkpoint.tensor(name) for name in checkpoint.names},
            dtype=dtype,
            attn_implementation="eager",
            experts_implementation="eager",
            ignore_mismatched_sizes=True,  # they are named below
            output_loading_info=True,
        )
    except Exception as error:  # checks of Transformers, of any kind
        raise ModelError(
            f"{checkpoint.path}: Transformers cannot load the weights ({error_summary(error)}); "
            "check that they belong to config.json"
        ) from error
    wrong = {
        word: sorted(str(each) for each in loading[key])
        for word, key in (
            ("missing", "missing_keys"),
            ("extra", "unexpected_keys"),
            ("misshapen", "mismatched_keys"),
        )
        if loading[key]
    }
    if wrong:
        shown = "; ".join(
            f"{word}: {', '.join(name[:120] for name in names[:_MAX_SHOWN_NAMES])}"
            for word, names in wrong.items()
        )
        raise ModelError(
            f"{checkpoint.path}: the weights do not fit config.json ({shown}); check that both "
            "come from the same model, or download it again"
        )
    return causal_lm
