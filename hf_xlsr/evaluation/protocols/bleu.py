"""Protocol `bleu`: corpus BLEU of translations, by sacrebleu, with the signature that says how it was computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sacrebleu.metrics import BLEU

from hf_xlsr.data.languages import language_code
from hf_xlsr.evaluation.report import metric_prefix
from hf_xlsr.evaluation.row_groups import both_sides
from hf_xlsr.utils.errors import XlsrError, did_you_mean

# Languages without spaces between words, and what sacrebleu cuts them with; 13a (mteval's) does the others.
TOKENIZERS_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
MOSES = "moses"
TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", MOSES)


class Translator(Protocol):
    """Anything that translates texts, in their order."""

    def translate(self, sentences: Sequence[str], **options: Any) -> list[str]:
        """A translation of each sentence."""


@dataclass(frozen=True)
class BleuScore:
    """Corpus BLEU.

    Attributes:
        score: Between 0 and 1; papers print it times 100.
        signature: Of sacrebleu: number of references, case, tokenizer, smoothing, version.
        brevity_penalty: 1 unless the translations are shorter than the references.
    """

    score: float
    signature: str
    brevity_penalty: float


def default_tokenizer(language: str) -> str:
    """The tokenizer that sacreBLEU is reported with for a target language.

    Example:
        >>> default_tokenizer("de"), default_tokenizer("zh"), default_tokenizer("zho_Hans")
        ('13a', 'zh', 'zh')
    """
    return TOKENIZERS_BY_LANGUAGE.get(language_code(language), "13a")


def check_tokenizer(name: object) -> str:
    """A tokenizer that `corpus_bleu` knows and can use.

    Raises:
        XlsrError: it knows none of that name, or the package that it needs is not installed.

    Example:
        >>> check_tokenizer("13b")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: the tokenizer of BLEU is '13b'; did you mean '13a'?
    """
    if name not in TOKENIZERS:
        raise XlsrError(f"the tokenizer of BLEU is '{name}'; {did_you_mean(str(name), TOKENIZERS)}")
    _metric(str(name))
    if name == MOSES:
        _moses("en")
    return str(name)


def _metric(tokenize: str) -> BLEU:
    tokenised = tokenize in ("none", MOSES)
    try:
        return BLEU(tokenize="none" if tokenised else tokenize, force=tokenised)
    except (ImportError, RuntimeError) as error:  # it tells what to install
        raise XlsrError(
            f"the tokenizer '{tokenize}' of BLEU needs a package that is not installed; install it "
            f"({' '.join(str(error).split())}), or take 'char'."
        ) from error


def corpus_bleu(
    translations: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", language: str = "en"
) -> BleuScore:
    """BLEU of translations against one reference each, n-grams up to 4, smoothed as sacrebleu does by default.

    Smoothing (`exp`) only changes corpora in which some order of n-grams matches nowhere.

    Args:
        translations: What a system gave, detokenised.
        references: Their references, in the same order.
        tokenize: `13a` is sacreBLEU's default and the one to compare with; `zh`, `ja-mecab` and `ko-mecab` cut text
            without spaces, `char` into letters, `intl` by Unicode. `none` takes texts that are tokenised already and
            splits them at spaces: tokenised BLEU, as `multi-bleu.perl` computes it. `moses` does that after the Moses
            tokenizer (package sacremoses) has cut both sides.
        language: Of the texts, for `moses`.

    Raises:
        XlsrError: the lists differ in length or are empty, the tokenizer is unknown, or its package is not installed.

    Example:
        >>> result = corpus_bleu(["The cat sat on the mat."], ["The cat sat on a mat."])
        >>> round(100 * result.score, 2), result.signature.split("|")[3]
        (48.89, 'tok:13a')
    """
    if len(translations) != len(references):
        raise XlsrError(
            f"there are {len(translations):,} translations but {len(references):,} references; give one of each a line."
        )
    if not translations:
        raise XlsrError("BLEU needs translations, but there is none; give a test set that is not empty.")
    metric = _metric(check_tokenizer(tokenize))
    sides = [list(translations), list(references)]
    if tokenize == MOSES:
        cut = _moses(language)
        sides = [[cut(text) for text in side] for side in sides]
    result = metric.corpus_score(sides[0], [sides[1]])
    signature = str(metric.get_signature())
    if tokenize == MOSES:
        signature = signature.replace("tok:none", f"tok:{MOSES}")
    return BleuScore(min(result.score / 100, 1.0), signature, result.bp)  # a perfect one comes out above 100


def _moses(language: str) -> Callable[[str], str]:
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise XlsrError(
            "the tokenizer 'moses' of BLEU needs the package sacremoses; install it with `pip install sacremoses`."
        ) from error
    tokenizer = MosesTokenizer(lang=language_code(language))
    return lambda text: tokenizer.tokenize(text, return_str=True, escape=False)


def bleu(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str,
    split: str = "test",
    tokenize: str | Sequence[str] | None = None,
    signatures: dict[str, str] | None = None,
    translations: list[str] | None = None,
    **options: Any,
) -> dict[str, float]:
    """Translates a test set and scores it.

    Args:
        translator: Anything with `translate`.
        sources: Sentences.
        references: Their translations, in the same order.
        languages: Of sources and references.
        name: The dataset.
        split: The part of it.
        tokenize: See `corpus_bleu`; one or more. That of `default_tokenizer` when absent.
        signatures: Gets the signature of each score, by the score's key.
        translations: Gets the translations.
        **options: For `translate`, such as `num_beams`.

    Returns:
        `bleu` (between 0 and 1) and `sentences` under `{name}-bleu/en-de/{split}/`. The protocol is called `bleu` with
        tokenizer 13a, otherwise after its tokenizer: `bleu-zh`, `bleu-moses`.

    Raises:
        XlsrError: as `corpus_bleu`.

    Example:
        >>> class Shouting:
        ...     def translate(self, sentences, **options):
        ...         return [sentence.upper() for sentence in sentences]
        >>> sources, references = ["ein haus am see"], ["EIN HAUS AM SEE"]
        >>> bleu(Shouting(), sources, references, languages=("de", "en"), name="toy")
        {'toy-bleu/de-en/test/bleu': 1.0, 'toy-bleu/de-en/test/sentences': 1}
    """
    chosen = [tokenize] if isinstance(tokenize, str) else list(tokenize or [default_tokenizer(languages[1])])
    for one in chosen:
        check_tokenizer(one)
    found = translator.translate(sources, **options)
    metrics: dict[str, float] = {}
    for one in chosen:
        result = corpus_bleu(found, references, tokenize=one, language=languages[1])
        prefix = metric_prefix(name, "bleu" if one == "13a" else f"bleu-{one}", "-".join(languages), split)
        metrics[f"{prefix}/bleu"], metrics[f"{prefix}/sentences"] = round(result.score, 6), len(found)
        if signatures is not None:
            signatures[f"{prefix}/bleu"] = result.signature
    if translations is not None:
        translations.extend(found)
    return metrics


def bleu_rows(translator: Translator, rows: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, float]:
    """`bleu` of rows of pairs, each language pair for itself.

    Args:
        translator: Anything with `translate`.
        rows: With `source`, `target`, `source_lang` and `target_lang`.
        **options: For `bleu`.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["source_lang"], row["target_lang"]), []).append(row)
    metrics: dict[str, float] = {}
    for languages, chosen in groups.items():
        sides = both_sides(chosen)
        metrics.update(bleu(translator, *sides, languages=languages, **options))
    return metrics
