"""Load a model that Transformers computes."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from pagedrun.paged.cache.kv_cache import CacheDevice
from pagedrun.paged.models.base_checkpoint import BaseCheckpoint
from pagedrun.paged.models.library.agreement import Disagreement
from pagedrun.paged.models.library.library_error import said
from pagedrun.paged.models.library.library_fields import library_config
from pagedrun.paged.models.library.library_model import LibraryModel
from pagedrun.paged.models.library.library_spec import LibrarySpec
from pagedrun.paged.models.library.plain.plain_model import PlainModel
from pagedrun.paged.models.library.plain.plain_spec import PlainSpec
from pagedrun.paged.models.library.quiet import quiet
from pagedrun.paged.values.errors import ModelError

_SHOWN = 4


def load_library(
    network: LibrarySpec | PlainSpec,
    checkpoint: BaseCheckpoint,
    dtype: torch.dtype,
    device: CacheDevice,
    *,
    row_invariant: bool,
) -> LibraryModel | PlainModel:
    """Return the model of a checkpoint's folder with its weights, cast to `dtype`.

    The library gets config.json's fields and the tensors of the safetensors files, and opens no
    file itself. `row_invariant` asks for products whose rows have the same bytes whatever their
    number; without paged memory they are the library's. Raises `ModelError` if the tensors are not
    those of the model, or if it gives other logits than by itself.
    """
    folder = checkpoint.path
    config = library_config(str(folder / "config.json"), network.fields)
    with quiet():
        causal_lm = _loaded(config, checkpoint, dtype).to(device.torch_device).eval()
    over = "with its own caches" if isinstance(network, PlainSpec) else "with paged memory"
    try:
        if isinstance(network, PlainSpec):
            return PlainModel(network, causal_lm)
        return LibraryModel(network, causal_lm, device, row_invariant=row_invariant)
    except Exception as error:  # whatever its code raises where it meets ours
        why = str(error) if isinstance(error, Disagreement) else f"it fails there ({said(error)})"
        raise ModelError(
            f"{folder}: model_type {config.model_type!r} cannot be run by Transformers' code "
            f"{over}: {why}"
        ) from error


def _loaded(config: Any, checkpoint: BaseCheckpoint, dtype: torch.dtype) -> Any:
    """Return the library's model on the host, attending by the library's plain code."""
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
    except Exception as error:  # the library's own checks, of any kind
        raise ModelError(
            f"{checkpoint.path}: Transformers cannot load the weights ({said(error)}); check that "
            "they belong to config.json"
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
            f"{word}: {', '.join(name[:120] for name in names[:_SHOWN])}"
            for word, names in wrong.items()
        )
        raise ModelError(
            f"{checkpoint.path}: the weights do not fit config.json ({shown}); check that both "
            "come from the same model, or download it again"
        )
    return causal_lm
