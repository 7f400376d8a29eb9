"""The flags of SamplingParams' fields, which are many."""

from pagedrun.paged.values.flag import Flag, Form, Panel
from pagedrun.paged.values.rules import Rule, floats, integers
from pagedrun.paged.values.sampling.early_stopping import EarlyStopping
from pagedrun.paged.values.sampling.logprobs import MAX_LOGPROBS
from pagedrun.paged.values.sampling.rules import (
    ALLOWED_TOKEN_IDS_RULE,
    BAD_WORDS_RULE,
    LOGIT_BIAS_RULE,
    MAX_REPETITION,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TAG_LENGTH,
    is_budget,
    is_id_list,
    is_reasoning_tags,
    is_repetition,
    is_share,
    is_stop,
)
from pagedrun.paged.values.sampling.structure_rules import (
    CHOICE_WANTED,
    JSON_SCHEMA_WANTED,
    TEXT_WANTED,
    is_choice,
    is_grammar_text,
    is_json_schema,
)
from pagedrun.paged.values.sampling.vote import MAX_VOTE_LENGTH, is_vote

MAX_N = 1024
SWITCH = Rule(lambda value: isinstance(value, bool), "true or false")
MAX_BEAM_WIDTH = 16
MAX_LENGTH_PENALTY = 5.0  # a length to this power is still a float32
_INT32 = 2**31 - 1


N = Flag("Answers for each row.", Panel.SAMPLING, "N", rule=integers(1, MAX_N))

TEMPERATURE = Flag(
    "0 is greedy.",
    Panel.SAMPLING,
    "X",
    rule=floats(0.0, 100.0),
    declared=("--temperature", "-t"),
)

TOP_P = Flag(
    "Keep the most likely tokens up to this cumulative probability.",
    Panel.SAMPLING,
    "X",
    rule=Rule(is_share, "a number above 0 and at most 1"),
)

TOP_K = Flag(
    "Keep the K most likely tokens; 0 keeps all.",
    Panel.SAMPLING,
    "N",
    rule=integers(-1, _INT32),
)

MIN_P = Flag(
    "Drop tokens below this share of the top probability.",
    Panel.SAMPLING,
    "X",
    rule=floats(0.0, 1.0),
)

SEED = Flag(
    "Seed of the random streams of all rows.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, 2**63 - 1),
)

MAX_TOKENS = Flag(
    "Maximum number of tokens to generate. With --prompt-logprobs it may be 0.",
    Panel.SAMPLING,
    "N",
    rule=Rule(
        integers(0, _INT32).accepts,
        f"an integer from 1 to {_INT32}, or 0 with prompt_logprobs",
    ),
    declared=("--max-tokens", "-n"),
)

MIN_TOKENS = Flag(
    "Minimum number of tokens before a stop.", Panel.SAMPLING, "N", rule=integers(0, _INT32)
)

STOP = Flag(
    "Text that ends an answer. Repeatable.",
    Panel.SAMPLING,
    "TEXT",
    rule=Rule(
        is_stop,
        f"at most {MAX_STOP_STRINGS} non-empty strings of at most {MAX_STOP_LENGTH} "
        "Unicode characters",
    ),
)

STOP_TOKEN_IDS = Flag(
    "Token ids that end an answer. Repeatable, or comma separated.",
    Panel.SAMPLING,
    "IDS",
    form=Form.IDS,
    rule=Rule(is_id_list, f"a list of at most {MAX_STOP_TOKEN_IDS} token ids"),
)

IGNORE_EOS = Flag(
    "Continue after the model's end of text.",
    Panel.SAMPLING,
    rule=SWITCH,
)

REPETITION_PENALTY = Flag(
    "Above 1, tokens of the prompt and the answer become less likely to recur; "
    "below 1, more likely.",
    Panel.SAMPLING,
    "X",
    rule=floats(0.01, 100.0),
)

PRESENCE_PENALTY = Flag(
    "Subtracted from the logits of tokens that are in the answer.",
    Panel.SAMPLING,
    "X",
    rule=floats(-2.0, 2.0),
)

FREQUENCY_PENALTY = Flag(
    "Subtracted from a token's logit for each of its occurrences in the answer.",
    Panel.SAMPLING,
    "X",
    rule=floats(-2.0, 2.0),
)

LOGIT_BIAS = Flag(
    "Added to the logits of tokens: a JSON object from token ids to numbers.",
    Panel.SAMPLING,
    "JSON",
    form=Form.JSON,
    rule=LOGIT_BIAS_RULE,
)

ALLOWED_TOKEN_IDS = Flag(
    "Allow only these tokens. Repeatable, or comma separated.",
    Panel.SAMPLING,
    "IDS",
    form=Form.IDS,
    rule=ALLOWED_TOKEN_IDS_RULE,
)

BAD_WORDS = Flag(
    "Forbid this word in answers. Repeatable.",
    Panel.SAMPLING,
    "TEXT",
    rule=BAD_WORDS_RULE,
)

LOGPROBS = Flag(
    "Log-probabilities of the tokens of answers, with the N most likely at each position.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, MAX_LOGPROBS),
)

PROMPT_LOGPROBS = Flag(
    "Log-probabilities of the prompt's tokens, with the N most likely at each position.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, MAX_LOGPROBS),
)

JSON_SCHEMA = Flag(
    "The answer is JSON that matches this schema, text or @file.",
    Panel.STRUCTURE,
    "TEXT",
    form=Form.PROSE,
    rule=Rule(is_json_schema, JSON_SCHEMA_WANTED),
)

JSON_OBJECT = Flag(
    "The answer is a JSON object.",
    Panel.STRUCTURE,
    rule=Rule(lambda value: isinstance(value, bool), "true or false"),
)

REGEX = Flag(
    "The whole answer matches this regular expression.",
    Panel.STRUCTURE,
    "REGEX",
    form=Form.EXPRESSION,
    rule=Rule(is_grammar_text, TEXT_WANTED),
)

CHOICE = Flag(
    "The answer is one of these texts. Repeatable.",
    Panel.STRUCTURE,
    "TEXT",
    rule=Rule(is_choice, CHOICE_WANTED),
)

GRAMMAR = Flag(
    "The answer is a sentence of this Lark grammar, text or @file.",
    Panel.STRUCTURE,
    "TEXT",
    form=Form.PROSE,
    rule=Rule(is_grammar_text, TEXT_WANTED),
)

SKIP_SPECIAL_TOKENS = Flag("Omit special tokens from the text.", Panel.SAMPLING, rule=SWITCH)

INCLUDE_STOP_STR_IN_OUTPUT = Flag(
    "Keep the stop string or token in the text.", Panel.SAMPLING, rule=SWITCH
)

STOP_ON_REPETITION = Flag(
    "End an answer whose last tokens are one sequence repeated N times; 0: never.",
    Panel.SAMPLING,
    "N",
    rule=Rule(is_repetition, f"0, or an integer from 2 to {MAX_REPETITION}"),
)

REASONING_TAGS = Flag(
    "Tags of thoughts, which are separated from the text: auto (the chat "
    "template's), none, or two tags such as <think>,</think>.",
    Panel.SAMPLING,
    "TAGS",
    rule=Rule(
        is_reasoning_tags,
        f"auto, none, or two tags of at most {MAX_TAG_LENGTH} characters, separated by a comma",
    ),
)

THINKING_BUDGET = Flag(
    "Maximum number of tokens of a thought, after which its closing tag is forced.",
    Panel.SAMPLING,
    "N",
    rule=Rule(is_budget, "an integer of at least 0"),
)

VOTE = Flag(
    "Let the N answers vote with the match of a regular expression or json:PATH; "
    "sampling stops once the majority is certain.",
    Panel.SAMPLING,
    "VOTE",
    rule=Rule(
        is_vote,
        "a regular expression in RE2's syntax (no look-around, no backreferences), or "
        f"json: and a path, of at most {MAX_VOTE_LENGTH} characters",
    ),
)

BEAM_WIDTH = Flag(
    "Beam search with N beams, of which the best --n are returned; 1 disables it.",
    Panel.SAMPLING,
    "N",
    rule=integers(1, MAX_BEAM_WIDTH),
)

LENGTH_PENALTY = Flag(
    "Exponent of the length by which a beam's log-probability is divided.",
    Panel.SAMPLING,
    "X",
    rule=floats(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
)

EARLY_STOPPING = Flag(
    "End when as many beams are finished (true), when no better one is likely "
    "(false), or when none is possible (never).",
    Panel.SAMPLING,
    "WHEN",
    rule=Rule(lambda value: isinstance(value, EarlyStopping), 'true, false or "never"'),
)
