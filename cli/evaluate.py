"""`pagedrun lm-eval`: the command line of lm-evaluation-harness, with pagedrun as its model."""

from typing import Annotated

import typer

from pagedrun.cli import exits

HELP = """Evaluate a model on the tasks of lm-evaluation-harness (`lm_eval`).

All arguments after `lm-eval` are those of the harness's own command line; without --model, \
pagedrun's engine is used. --model_args takes pretrained=FOLDER and settings of the engine, such \
as dtype=bfloat16. Needs lm_eval: pip install 'lm_eval>=0.4.13', or '.[eval]' from a clone.

Examples:

  pagedrun lm-eval --model_args pretrained=./model --tasks hellaswag
  pagedrun lm-eval --model_args pretrained=./model,max_length=4096 --tasks gsm8k --limit 50
  pagedrun lm-eval ls tasks
  pagedrun lm-eval run --help

Exit status: 0 evaluated, 1 failure, 2 refused.
"""
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}

Args = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ARGS]...", show_default=False, help="The arguments of `lm_eval`."),
]


def evaluate(context: typer.Context, args: Args = None) -> None:
    """Evaluate a model on the tasks of lm-evaluation-harness."""
    with exits.boundary(context.obj):
        # Lazy: `--help` must start fast.
        from pagedrun.kernels.environment.threads import prepare_environment

        prepare_environment()
        from pagedrun.paged.evaluation.command import run_harness

        run_harness(args or [])
