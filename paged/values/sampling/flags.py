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
    "Keep the likeliest tokens of this mass.",
    Panel.SAMPLING,
    "X",
    rule=Rule(is_share, "a number above 0 and at most 1"),
)

TOP_K = Flag(
    "Keep the K likeliest tokens; 0 keeps all.",
    Panel.SAMPLING,
    "N",
    rule=integers(-1, _INT32),
)

MIN_P = Flag(
    "Drop tokens below this share of the top one.",
    Panel.SAMPLING,
    "X",
    rule=floats(0.0, 1.0),
)

SEED = Flag(
    "Selects the random stream of every row.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, 2**63 - 1),
)

MAX_TOKENS = Flag(
    "Most tokens to generate. 0, with --prompt-logprobs: none.",
    Panel.SAMPLING,
    "N",
    rule=Rule(
        integers(0, _INT32).accepts,
        f"an integer from 1 to {_INT32}, or 0 with prompt_logprobs",
    ),
    declared=("--max-tokens", "-n"),
)

MIN_TOKENS = Flag("Fewest tokens before a stop.", Panel.SAMPLING, "N", rule=integers(0, _INT32))

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
    "Go on after the model's end of text.",
    Panel.SAMPLING,
    rule=SWITCH,
)

REPETITION_PENALTY = Flag(
    "Above 1: tokens of the prompt and the answer are less likely again; below: more.",
    Panel.SAMPLING,
    "X",
    rule=floats(0.01, 100.0),
)

PRESENCE_PENALTY = Flag(
    "Taken from the logits of tokens that are in the answer.",
    Panel.SAMPLING,
    "X",
    rule=floats(-2.0, 2.0),
)

FREQUENCY_PENALTY = Flag(
    "Taken from a token's logit for each time it is in the answer.",
    Panel.SAMPLING,
    "X",
    rule=floats(-2.0, 2.0),
)

LOGIT_BIAS = Flag(
    "Added to the logits of tokens: a JSON object of token ids and numbers.",
    Panel.SAMPLING,
    "JSON",
    form=Form.JSON,
    rule=LOGIT_BIAS_RULE,
)

ALLOWED_TOKEN_IDS = Flag(
    "No other tokens are chosen. Repeatable, or comma separated.",
    Panel.SAMPLING,
    "IDS",
    form=Form.IDS,
    rule=ALLOWED_TOKEN_IDS_RULE,
)

BAD_WORDS = Flag(
    "A word that no answer has. Repeatable.",
    Panel.SAMPLING,
    "TEXT",
    rule=BAD_WORDS_RULE,
)

LOGPROBS = Flag(
    "Log-probabilities of the tokens of answers, with the N likeliest at each place.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, MAX_LOGPROBS),
)

PROMPT_LOGPROBS = Flag(
    "Log-probabilities of the prompt's tokens, with the N likeliest at each place.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, MAX_LOGPROBS),
)

JSON_SCHEMA = Flag(
    "The answer is JSON by this schema, text or @file.",
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
    "The answer is this text, or another one named. Repeatable.",
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

SKIP_SPECIAL_TOKENS = Flag("Leave special tokens out of the text.", Panel.SAMPLING, rule=SWITCH)

INCLUDE_STOP_STR_IN_OUTPUT = Flag(
    "Keep the stop string or token in the text.", Panel.SAMPLING, rule=SWITCH
)

STOP_ON_REPETITION = Flag(
    "End an answer whose last tokens are the same few N times over; 0: never.",
    Panel.SAMPLING,
    "N",
    rule=Rule(is_repetition, f"0, or an integer from 2 to {MAX_REPETITION}"),
)

REASONING_TAGS = Flag(
    "What marks thoughts, kept apart from the text: auto (what the chat template has), "
    "none, or two tags such as <think>,</think>.",
    Panel.SAMPLING,
    "TAGS",
    rule=Rule(
        is_reasoning_tags,
        f"auto, none, or two tags of at most {MAX_TAG_LENGTH} characters with a comma between",
    ),
)

THINKING_BUDGET = Flag(
    "Most tokens of a thought; then its closing tag is forced.",
    Panel.SAMPLING,
    "N",
    rule=Rule(is_budget, "an integer of at least 0"),
)

VOTE = Flag(
    "Let the N answers vote by what a regular expression or json:PATH finds; sampling "
    "stops once the majority is certain.",
    Panel.SAMPLING,
    "VOTE",
    rule=Rule(
        is_vote,
        "a regular expression as RE2 takes it (without look-around and back-references), "
        f"or json: and a path, of at most {MAX_VOTE_LENGTH} characters",
    ),
)

BEAM_WIDTH = Flag(
    "Beam search with N beams, best first, of which --n are returned. 1 is none.",
    Panel.SAMPLING,
    "N",
    rule=integers(1, MAX_BEAM_WIDTH),
)

LENGTH_PENALTY = Flag(
    "Beams are scored by their log-probability over their length to this power.",
    Panel.SAMPLING,
    "X",
    rule=floats(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
)

EARLY_STOPPING = Flag(
    "End when as many beams are finished (true), or when no better one is likely.",
    Panel.SAMPLING,
    "WHEN",
    rule=Rule(lambda value: isinstance(value, EarlyStopping), 'true, false or "never"'),
)
