"""Hugging Face `generate` on the same rows with the same weights, as a peer of `bench throughput`.

`pagedrun bench throughput --against transformers` loads this file of a checkout; installed
packages do not have it.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pagedrun.paged.bench.contender import ComparedRun, Tokens
from pagedrun.paged.bench.result import Neighbours, Spread
from pagedrun.paged.bench.workload import BenchModel, Workload
from pagedrun.paged.planning.memory import HostMemory, peak_resident_bytes
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.request import Request

# Its cache grows by copying: the old keys and values of a layer and the new ones exist at once.
CACHE_SLACK = 1.3
SHARE_OF_FREE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigures(ComparedRun):
    """Figures of a run of a peer; `batch_rows`: rows in a batch."""

    batch_rows: int


class TransformersPeer:
    """A model in Transformers: scaled dot product attention, greedy, no stop token.

    Rows run in batches of `batch_rows`, None: as many as fit into memory. They must be of one
    length, so that no padding slows them down.
    """

    name = "transformers"

    def __init__(self, batch_rows: int | None = None) -> None:
        self._batch_rows = batch_rows

    @property
    def version(self) -> str | None:
        """Version of the library."""
        return version("transformers")

    def check(self, model: BenchModel, workload: Workload) -> None:
        """Raise `UsageError` for rows of several lengths: they would be padded."""
        if not workload.has_one_length:
            raise UsageError(
                f"{option('against')} {self.name} needs rows of one length, since it computes all "
                f"of a batch to its longest; give {option('unique')} and {option('output')} one "
                "number each"
            )

    def load(self, model: BenchModel, dtype: torch.dtype, device: torch.device) -> None:
        """Build the model in Transformers."""
        self._config = model.config
        self._dtype = dtype
        self._device = device
        self._model = load_model(model, dtype, device)

    def warm_up(self, workload: Workload) -> None:
        """Answer a few short rows."""
        self.run(workload.warm_up().requests(self._config.vocab_size))

    def run(self, requests: Seq[Request]) -> tuple[PeerFigures, Tokens]:
        """Answer the requests batch by batch."""
        batch_rows = min(self._batch_rows or self._fitting(requests[0]), len(requests))
        tokens: Tokens = []
        prefill_s, decode_s = 0.0, list[float]()
        neighbours = Neighbours()
        began = perf_counter()
        for start in range(0, len(requests), batch_rows):
            batch = requests[start : start + batch_rows]
            answers, times = self._generate(batch)
            tokens += answers
            prefill_s += times[0]
            if len(batch) == batch_rows:
                decode_s += times[1:]
        total_s = perf_counter() - began
        return PeerFigures(
            total_s=total_s,
            prefill_s=prefill_s,
            rows=len(requests),
            batch_rows=batch_rows,
            prompt_tokens=sum(len(request.prompt_token_ids) for request in requests),
            generated_tokens=sum(map(len, tokens)),
            decode_rows=batch_rows,
            decode_step=Spread.of(decode_s),
            peak_memory=peak_resident_bytes(),
            others_busy=neighbours.cpus_busy(),
        ), tokens

    def close(self) -> None:
        """Leave the model to this process, whose end frees it."""

    def _generate(self, batch: Seq[Request]) -> tuple[Tokens, list[float]]:
        """Return the new tokens of each row and the seconds that each of them took."""
        prompts = torch.tensor([request.prompt_token_ids for request in batch], device=self._device)
        clock = _Clock()
        with torch.inference_mode():
            answers = self._model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=batch[0].params.max_tokens,
                logits_processor=[clock],
            )
        return [tuple(row) for row in answers[:, prompts.shape[1] :].tolist()], clock.seconds

    def _fitting(self, request: Request) -> int:
        """Return the number of such rows that fit into memory, at least 1."""
        config, itemsize = self._config, self._dtype.itemsize
        dtype = str(self._dtype).removeprefix("torch.")
        cached = sum(spec.bytes_per_token for spec in config.network.kv_cache_specs(dtype))
        length = len(request.prompt_token_ids) + request.params.max_tokens
        widest = (3 * config.intermediate_size + 6 * config.hidden_size) * itemsize
        per_row = length * (cached * CACHE_SLACK + widest)
        if self._device.type == "cuda":
            available = torch.cuda.mem_get_info(self._device)[0]
        else:
            available = HostMemory.read().available
        return max(int(available * SHARE_OF_FREE / per_row), 1)


class _Clock:
    """Logits processor that only records the time between its calls."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._at = perf_counter()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if scores.is_cuda:
            torch.cuda.synchronize()
        now = perf_counter()
        self.seconds.append(now - self._at)
        self._at = now
        return scores


def open_peer(path: Path | None, batch_rows: int | None) -> TransformersPeer:
    """Return Transformers with batches of `batch_rows` rows, None: as many as fit.

    Raises `UsageError` for a `path`, since pagedrun's own environment has it.
    """
    if path is not None:
        raise UsageError(
            f"{option('peer_path')} belongs to the other programs; Transformers is in pagedrun's "
            "own environment"
        )
    return TransformersPeer(batch_rows)


def load_model(model: BenchModel, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the model as Transformers builds it, in evaluation mode."""
    import transformers  # imported here: it takes long, and only this needs all of it

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    settings = {"dtype": dtype, "attn_implementation": "sdpa"}
    if model.folder is not None:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            model.folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            **settings,
        )
    else:
        fields = dict(model.fields or {})
        config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
        with device:
            loaded = transformers.AutoModelForCausalLM.from_config(config, **settings)
        weights = model.weights(dtype, device)
        with torch.no_grad():
            for name, parameter in loaded.named_parameters():  # tied ones once
                parameter.copy_(weights.read(name))
    loaded.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return loaded.to(device).eval()
