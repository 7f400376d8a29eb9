"""Pre-tokenizers of GGUF files: regular expressions by the names in `tokenizer.ggml.pre`.

Names and flags are those of llama.cpp (`llama_vocab::impl::load` in src/llama-vocab.cpp). Where
llama.cpp quotes the expression of the model's tokenizer.json beside one of its own that its regex
library can read, here is the quoted one. Two of its names are not here: "afmoe", whose
digits llama.cpp splits by code of its own that joins them to what precedes them, and "whitespace".
"""

from collections.abc import Mapping
from typing import NamedTuple


class PreTokenizer(NamedTuple):
    """Split of a text into the pieces within which bytes are merged.

    Each of `regexes` (Oniguruma) splits the pieces of the one before it into its matches and what
    lies between them. `ignore_merges`: a piece that is a token is not merged from bytes.
    `adds_bos`: a prompt begins with BOS unless the file says otherwise. `adds_sep`: a separator
    precedes the second text of a pair. `byte_level`: characters stand for bytes, as in GPT-2;
    otherwise for themselves, ▁ for a space, and unknown ones are split into tokens of bytes.
    """

    regexes: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    adds_sep: bool = False
    byte_level: bool = True


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_THREE_DIGITS = r"\p{N}{1,3}"
_LLAMA3 = f"{_ENDINGS}|{_WORD}|{_THREE_DIGITS}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = f"{_ENDINGS}|{_WORD}|{_DIGIT}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{_DIGIT}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)


def _cased(endings: str, digits: str, without: str = "") -> str:
    """Return words split where a capital follows a small letter, without some letters."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{before}{upper}*{lower}+{endings}|{before}{upper}+{lower}*{endings}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n{'' if without else '/'}]*|{_SPACES}"
    )


_GPT4O = _cased(f"{_ENDINGS}?", _THREE_DIGITS)
_CJK = r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"
_HANGUL_AND_CJK = r"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
_DEEPSEEK_WORD = (
    r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
)
_DEEPSEEK3 = (
    _THREE_DIGITS,
    _CJK,
    rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# Letters that have a case, as of Unicode 12.
_CASED_LETTERS = (
    r"A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF"
    r"\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1"
    r"\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD"
    r"\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D"
    r"\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4"
    r"\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC"
    r"\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128"
    r"\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B"
    r"\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787"
    r"\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}"
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
    r"\s+$",
    _HANGUL_AND_CJK,
    r"\p{N}+",
)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+"
_SPACES_BY_POWERS = (
    r"\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
    r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
_LINES = r"[^\n]+|\n+"
_EXAONE_MOE_WORD = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"

_OF_GPT2 = PreTokenizer((_GPT2,))
_OF_ROBERTA = PreTokenizer((_GPT2,), adds_sep=True)
_OF_SINGLE_DIGITS = PreTokenizer((_DIGIT, _GPT2))
_OF_LLAMA3 = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_OF_QWEN2 = PreTokenizer((_QWEN2,))
_OF_GPT4O = PreTokenizer((_GPT4O,))
_OF_GLM = PreTokenizer((_LLAMA3,), ignore_merges=True)
_OF_DEEPSEEK3 = PreTokenizer(_DEEPSEEK3)
_OF_BLOOM = PreTokenizer((_BLOOM,))
_OF_TINY_AYA = PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))
_OF_BAILING = PreTokenizer(
    (
        rf"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|{_DIGIT}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
# llama.cpp begins prompts of Gemma 4 with BOS whatever the file says: early files say no.
GEMMA4 = PreTokenizer((_LINES,), adds_bos=True, byte_level=False)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "a.x-4.0": _OF_GPT2,
    "bailingmoe": _OF_BAILING,
    "bailingmoe2": _OF_BAILING,
    "bloom": _OF_BLOOM,
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            _DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "codeshell": _OF_SINGLE_DIGITS,
    "cohere2moe": _OF_TINY_AYA,
    "command-r": _OF_SINGLE_DIGITS,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HANGUL_AND_CJK, _DIGIT)
    ),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-r1-qwen": _OF_QWEN2,
    "deepseek-v3": _OF_DEEPSEEK3,
    "default": PreTokenizer(
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
    "exaone": _OF_SINGLE_DIGITS,
    "exaone4": _OF_GPT2,
    "exaone-moe": PreTokenizer(
        (
            rf"{_ENDINGS}|{_EXAONE_MOE_WORD}|{_DIGIT}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "f2llmv2": _OF_QWEN2,
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "falcon3": _OF_LLAMA3,
    "falcon-h1": _OF_LLAMA3,
    "gemma4": GEMMA4,
    "gigachat": _OF_GPT2,
    "glm4": _OF_GLM,
    "glm5": _OF_GLM,
    "gpt-2": _OF_GPT2,
    "gpt3-finnish": _OF_BLOOM,
    "gpt-4o": _OF_GPT4O,
    "granite-docling": _OF_GPT2,
    "granite-embed-multi-311m": GEMMA4,
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), ignore_merges=True),
    "grok-2": _OF_QWEN2,
    "hunyuan": _OF_QWEN2,
    "hunyuan-dense": _OF_DEEPSEEK3,
    "hy_v4": _OF_DEEPSEEK3,
    "jais": _OF_GPT2,
    "jais-2": PreTokenizer((f"{_ENDINGS}|{_WORD}|{_THREE_DIGITS}|{_SYMBOLS}|{_SPACES_BY_POWERS}",)),
    "jina-de": _OF_GPT2,
    "jina-es": _OF_GPT2,
    "jina-v1-en": _OF_ROBERTA,
    "jina-v2-code": _OF_ROBERTA,
    "jina-v2-de": _OF_GPT2,
    "jina-v2-es": _OF_GPT2,
    "jina-v5-nano": _OF_LLAMA3,
    "joyai-llm": _OF_DEEPSEEK3,
    "kanana2": _OF_GPT4O,
    "kimi-k2": PreTokenizer(
        (r"\p{Han}+|" + _cased(f"{_ENDINGS}?", _THREE_DIGITS, without=r"&&[^\p{Han}]"),)
    ),
    "kormo": _OF_QWEN2,
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    "lfm2": _OF_LLAMA3,
    "llada-moe": _OF_BAILING,
    "llama3": _OF_LLAMA3,
    "llama4": _OF_GPT4O,
    "llama-bpe": _OF_LLAMA3,
    "llama-v3": _OF_LLAMA3,
    "megrez": _OF_QWEN2,
    "mellum": _OF_GPT2,
    "mellum2": _OF_SINGLE_DIGITS,
    "midm-2.0": _OF_LLAMA3,
    "minerva-7b": _OF_SINGLE_DIGITS,
    "minicpm5": PreTokenizer(
        (_THREE_DIGITS, rf"{_ENDINGS}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignore_merges=True
    ),
    "minimax-m2": _OF_GPT4O,
    "modern-bert": _OF_GPT2,
    "mpt": _OF_GPT2,
    "olmo": _OF_GPT2,
    "phi-2": _OF_GPT2,
    "pixtral": _OF_LLAMA3,
    "poro-chat": _OF_BLOOM,
    "qwen2": _OF_QWEN2,
    "qwen35": PreTokenizer((_QWEN35,)),
    "refact": _OF_SINGLE_DIGITS,
    "roberta-bpe": _OF_ROBERTA,
    "sarvam-moe": PreTokenizer((_LINES,), byte_level=False),
    "seed-coder": PreTokenizer(
        (rf"{_ENDINGS}|{_WORD}|{_DIGIT}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "smollm": _OF_SINGLE_DIGITS,
    "solar-open": _OF_QWEN2,
    "spark2_5": PreTokenizer(
        (
            _THREE_DIGITS,
            _CJK,
            rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
            _DIGIT,
        )
    ),
    "stablelm2": _OF_QWEN2,
    "starcoder": _OF_SINGLE_DIGITS,
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "talkie": _OF_GPT4O,
    "tekken": PreTokenizer((_cased("", _DIGIT),), ignore_merges=True, adds_bos=True),
    "tiny_aya": _OF_TINY_AYA,
    "trillion": _OF_GPT2,
    "ufakzeka": PreTokenizer((f"{_WORD}|{_DIGIT}|{_SYMBOLS}|{_SPACES}",)),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
    "youtu": PreTokenizer(
        (
            r"[\uAC00-\uD7A3\u3131-\u318E]+"
            r"|[\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C\u3001-\u303F\uFE30-\uFE4F]+"
            rf"|[\u3105-\u312F]+|{_CJK}",
            _cased(f"{_ENDINGS}?", _DIGIT),
        ),
        ignore_merges=True,
    ),
}
