"""Far side of `benchmarks/embedding.py`: vectors by sentence-transformers, or by Transformers.

    python embedding_worker.py

Imports nothing of pagedrun. The first line of stdin is a JSON object: the model's folder, a dtype,
a backend, the device, the texts, the texts of a batch, the number of threads and a scratch folder.
The answer is one line with the version of the side. Each further line is the number of texts of a
run and the file for their vectors, [texts, dimensions] float32; the answer has the seconds.
Anything else that is printed goes to stderr.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
REST_S = 0.3  # threads of OpenMP spin for a while after their work


def by_sentence_transformers(job: dict[str, Any]) -> tuple[str, Callable[[list[str]], Vectors]]:
    """Return the side's version and its function; int8 of OpenVINO is calibrated first."""
    import sentence_transformers
    from sentence_transformers import SentenceTransformer

    folder, backend = job["model"], job["backend"]
    settings: dict[str, Any] = {"dtype": getattr(torch, job["dtype"])}
    if backend.startswith("openvino"):
        # Its default on processors without bfloat16 is float32; elsewhere it must be told.
        precision = {"bfloat16": "bf16", "float32": "f32"}[job["dtype"]]
        settings = {"ov_config": {"INFERENCE_PRECISION_HINT": precision}}
    if backend == "openvino-int8":
        settings |= {"file_name": quantized_by_openvino(folder, job), "export": False}
        folder = job["scratch"]
    model = SentenceTransformer(
        folder, device=job["device"], backend=backend.split("-")[0], model_kwargs=settings
    )

    def encode(texts: list[str]) -> Vectors:
        vectors: Vectors = model.encode(texts, batch_size=job["batch"])
        return vectors.astype(np.float32)

    return f"sentence-transformers {sentence_transformers.__version__}, {backend}", encode


def quantized_by_openvino(folder: str, job: dict[str, Any]) -> str:
    """Write a model of int8 weights and activations to the scratch folder; return its file.

    Calibrated by texts of the run, as sentence-transformers does with its default data set.
    """
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

    scratch = Path(job["scratch"])
    model = SentenceTransformer(folder, device="cpu", backend="openvino")
    model.save_pretrained(str(scratch))
    data = scratch / "calibration"
    data.mkdir()
    with (data / "train.jsonl").open("w") as file:
        file.writelines(json.dumps({"sentence": text}) + "\n" for text in job["texts"][:300])
    export_static_quantized_openvino_model(
        model,
        None,
        str(scratch),
        dataset_name=str(data),
        dataset_config_name="default",
        dataset_split="train",
        column_name="sentence",
    )
    return "openvino/openvino_model_qint8_quantized.xml"


def by_transformers(job: dict[str, Any]) -> tuple[str, Callable[[list[str]], Vectors]]:
    """Return the side's version and its function: batches of like lengths, mean of all tokens."""
    import transformers
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])).eval()
    model.to(job["device"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])

    @torch.inference_mode()
    def encode(texts: list[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = np.empty((len(texts), model.config.hidden_size), np.float32)
        for first in range(0, len(order), job["batch"]):
            rows = order[first : first + job["batch"]]
            batch = tokenizer(
                [texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt"
            ).to(job["device"])
            hidden = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            out[rows] = torch.nn.functional.normalize(mean).cpu().numpy()
        return out

    return f"Transformers {transformers.__version__}", encode


def main() -> None:
    """Answer each line of stdin."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(job["threads"])
    by = by_transformers if job["backend"] == "transformers" else by_sentence_transformers
    version, encode = by(job)
    answers.write(json.dumps({"version": version}) + "\n")
    for line in sys.stdin:
        run = json.loads(line)
        began = time.perf_counter()
        vectors = encode(job["texts"][: run["texts"]])
        seconds = time.perf_counter() - began
        np.save(run["vectors"], vectors)
        time.sleep(REST_S)
        answers.write(json.dumps({"seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
