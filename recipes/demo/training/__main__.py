"""`python -m pagedrun.recipes.demo.training --out FOLDER`: train, write and measure the demo."""

import argparse
import platform
import time
from pathlib import Path

import torch

from pagedrun.recipes.demo.training.evaluate import SIZES, exact_match, greedy_exact
from pagedrun.recipes.demo.training.folder import write_folder
from pagedrun.recipes.demo.training.prompts import write_prompts
from pagedrun.recipes.demo.training.tokenizer import build_tokenizer
from pagedrun.recipes.demo.training.train import TrainingConfig, train

NUM_HELD_OUT_QUESTIONS = 1920  # per directory size


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m pagedrun.recipes.demo.training")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=TrainingConfig().num_steps)
    parser.add_argument("--seed", type=int, default=TrainingConfig().seed)
    parser.add_argument(
        "--evaluate",
        action="store_true",
        help="train nothing; decode the prompts of --out with transformers",
    )
    arguments = parser.parse_args()
    if arguments.evaluate:
        _evaluate(arguments.out)
    else:
        _train(arguments.out, TrainingConfig(num_steps=arguments.steps, seed=arguments.seed))


def _train(folder: Path, config: TrainingConfig) -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}")
    tokenizer = build_tokenizer()
    start = time.perf_counter()
    model = train(config, tokenizer, lambda line: print(line, flush=True))
    print(f"trained in {time.perf_counter() - start:.0f} s")
    write_folder(folder, model, tokenizer)
    write_prompts(folder)
    for size in SIZES:
        share = exact_match(model, tokenizer, size, NUM_HELD_OUT_QUESTIONS)
        print(f"{size} entries: {share:.2%} exact", flush=True)


def _evaluate(folder: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for kind, (num_exact, num_rows) in greedy_exact(folder, dtype).items():
            print(f"{dtype}, {kind}: {num_exact} of {num_rows} exact")


if __name__ == "__main__":
    main()
