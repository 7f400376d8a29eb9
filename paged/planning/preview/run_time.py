"""RunTime: how long a run of a planned file will take, from what an earlier one took."""

from pagedrun.paged.planning.preview.forecast_sections import ForecastFigures, RunTime
from pagedrun.paged.report.record.step_costs import USUAL_NEW_TOKEN, USUAL_STEP, StepCosts

# Another batch, other lengths of context, another load of the machine.
MARGIN = 1.5


def run_time(
    forecast: ForecastFigures,
    costs: StepCosts,
    *,
    read_s: float,
    load_s: float,
    compile_s: float,
    max_num_batched_tokens: int,
    ignore_eos: bool,
) -> RunTime:
    """Return at least and at most how long a run takes, `read_s` for reading the file and `load_s`
    for loading the model included, and at most `compile_s` for its kernels.

    How long answers become is not known before: at least they have a token each, and at most they
    are as long as they may be, as they are in any case with `ignore_eos`. What a run of another
    kind has cost is taken both as it was fitted and in the usual proportions, whichever is less or
    more: of prompts, a run that had hardly any knows little.
    """
    rows, tokens = forecast["rows"], forecast["tokens"]
    num_computed = tokens["computed"] + tokens["preempted_recomputed"]
    num_rows = rows["planned"] - rows["duplicates"]
    num_steps = forecast["steps"]["count"] * num_rows / max(rows["simulated"], 1)
    most = num_steps, num_computed, tokens["generated"]
    least = most if ignore_eos else (num_computed / max_num_batched_tokens, num_computed, num_rows)
    low_s = min(_fitted_s(costs, *least), _usual_s(costs, *least))
    high_s = max(_fitted_s(costs, *most), _usual_s(costs, *most))
    return {
        "read_s": read_s,
        "load_s": load_s,
        "compile_s": compile_s,
        "low_s": (read_s + load_s + low_s) / MARGIN,
        "high_s": (read_s + load_s + compile_s + high_s) * MARGIN,
    }


def _fitted_s(costs: StepCosts, num_steps: float, num_prompt: int, num_new: int) -> float:
    prompts_s = num_prompt * costs["prompt_token_s"]
    return num_steps * costs["step_s"] + prompts_s + num_new * costs["generated_token_s"]


def _usual_s(costs: StepCosts, num_steps: float, num_prompt: int, num_new: int) -> float:
    num_tokens = num_steps * USUAL_STEP + num_prompt + num_new * USUAL_NEW_TOKEN
    return num_tokens * costs["usual_token_s"]
