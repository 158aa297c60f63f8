"""What `peers.py` measures: each unit reads sets behind HF_XLSR_DATA and runs protocols on one encoder.

Every set is a test set; what a protocol chooses, it chooses on the part named for that (rules: docs/data.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_xlsr.data.languages import language_code
from hf_xlsr.data.sources import open_source
from hf_xlsr.encoders.debias import DebiasedEncoder, fit_debias
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.evaluation.averages import mean_over_languages
from hf_xlsr.evaluation.protocols.bucc import bucc_settings, hide_pairs
from hf_xlsr.evaluation.protocols.language_bias import language_bias
from hf_xlsr.evaluation.protocols.nli import nli
from hf_xlsr.evaluation.protocols.pair_classification import pair_classification
from hf_xlsr.evaluation.protocols.sts import sts
from hf_xlsr.evaluation.protocols.tatoeba import tatoeba
from hf_xlsr.evaluation.protocols.tatoeba_variants import tatoeba_laser, tatoeba_mteb, tatoeba_xtreme
from hf_xlsr.evaluation.protocols.xsim import xsim
from hf_xlsr.evaluation.protocols.xsr import xsr_both_directions
from hf_xlsr.evaluation.protocols.zero_shot import zero_shot
from hf_xlsr.evaluation.report import metric_prefix
from hf_xlsr.evaluation.senteval.evaluate import senteval
from hf_xlsr.mining import mine_bitext

Metrics = dict[str, float]
Rows = list[dict[str, Any]]

TATOEBA = ("deu", "fra", "spa", "ita", "cmn", "rus", "ara", "bul", "ell", "tur", "vie", "hin", "urd", "tha", "swh")
SIB200 = (
    *("eng_Latn", "deu_Latn", "fra_Latn", "spa_Latn", "ita_Latn", "por_Latn", "zho_Hans", "rus_Cyrl", "arb_Arab"),
    *("bul_Cyrl", "ell_Grek", "tur_Latn", "vie_Latn", "hin_Deva", "urd_Arab", "tha_Thai", "swh_Latn", "jpn_Jpan"),
)
NEWSTEST = ("de", "zh")
SETTINGS = ((3, "distance"), (4, "distance"), (3, "ratio"), (4, "ratio"))
SENTEVAL = ("MR", "SUBJ", "MPQA", "SST2", "MRPC")
NTREX = "de fr es it zh ru ar bg el tr vi th hi sw ur pt".split()
BIAS_LINES = 500
MINED = (500, 1000, 2000, 5000)
SEED = 1


@dataclass(frozen=True)
class Peer:
    """One encoder of the comparison.

    Args:
        label: What tables call it.
        folder: Where it is.
        languages: Its languages beside English, as far as the sets have them.
        prompt: What it wants before every text.
        skip: Units that are left out.
        ours: Whether it was trained by a recipe here, so that it has seen the training parts.
    """

    label: str
    folder: Path
    languages: list[str]
    prompt: str = ""
    skip: tuple[str, ...] = ()
    ours: bool = False


def read(path: str, columns: str, **options: Any) -> Rows:
    """Rows of a file behind HF_XLSR_DATA, with our names for the columns that `columns` maps."""
    names = [piece.split("=")[0] for piece in columns.split(",")]
    source = {"path": f"${{HF_XLSR_DATA}}/{path}.parquet", "columns": columns, **options}
    return list(open_source(source, languages=("en", "fr"), required=names))


def sides(rows: Rows) -> tuple[list[str], list[str]]:
    """Source and target sentences."""
    return [row["source"] for row in rows], [row["target"] for row in rows]


def held(text: str, part: int = 10) -> bool:
    """Whether a text is one of the tenth that the crc32 of a text sets apart for choosing."""
    return zlib.crc32(text.encode()) % part == 0


def tatoeba_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """Tatoeba v1 under each of its protocols, and xsim, English with every language."""
    metrics: Metrics = {}
    for code in (code for code in TATOEBA if language_code(code) in peer.languages):
        rows = read("tatoeba/tatoeba_v1_xnli15", "source=english,target=text", where={"src_lang": code})
        pair = ("en", language_code(code))
        for protocol in (tatoeba, tatoeba_laser, tatoeba_xtreme, tatoeba_mteb, xsim):
            metrics |= protocol(encoder, *sides(rows), languages=pair, name="tatoeba", **encoding)
    return mean_over_languages(metrics)


def ntrex_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """NTREX-128, 1,997 news sentences: XSR among all of them both ways, and xsim."""
    metrics: Metrics = {}
    for language in (language for language in ("de", "fr", "zh", "sw") if language in peer.languages):
        sources, targets = sides(read("news/ntrex128_xnli.test", f"source=en,target={language}"))
        common: dict[str, Any] = {"languages": ("en", language), "name": "ntrex", **encoding}
        metrics |= xsr_both_directions(encoder, sources, targets, sources, targets, **common)
        metrics |= xsim(encoder, sources, targets, **common)
    return mean_over_languages(metrics)


def bucc_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """A BUCC-like test: a fifth of newstest's pairs hidden among halves of the others; 2017 tunes, 2018 is tested."""
    metrics: Metrics = {}
    for language in (language for language in NEWSTEST if language in peer.languages):
        hidden = [
            hide_pairs(
                read(
                    "news/newstest2008_2018.train",
                    "source=xx,target=en",
                    where={"lang": language, "set": f"newstest{year}"},
                ),
                share=0.2,
                seed=SEED,
            )
            for year in (2017, 2018)
        ]
        metrics |= bucc_settings(
            encoder,
            *hidden,
            settings=SETTINGS,
            languages=(language, "en"),
            name="newstest",
            split="2018",
            tune_split="2017",
            **encoding,
        )
    return mean_over_languages(metrics)


def sts_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """STS12-14, STS-B and SICK-R, test parts."""
    columns = "sentence1=sentence1,sentence2=sentence2,score=score,subset=subset"
    files = {"STS12": "sts12", "STS13": "sts13", "STS14": "sts14", "STSBenchmark": "stsb", "SICK-R": "sick"}
    tasks = {task: read(f"sts/{file}", columns, where={"split": "test"}) for task, file in files.items()}
    return sts(encoder, tasks, **encoding)


def senteval_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """SentEval's tasks that are free to have, with the toolkit's classifiers."""
    tasks: dict[str, Rows] = {}
    for task in SENTEVAL:
        columns = "sentence1=sentence1,sentence2=sentence2" if task == "MRPC" else "text=text"
        more = ",split=split" if task in ("SST2", "MRPC") else ""
        tasks[task] = read(f"senteval/{task}", f"{columns},label=label{more}")
    pair = "sentence1=sentence1,sentence2=sentence2,split=split"
    tasks["SICK-E"] = read("sts/sick", f"{pair},label=entailment")
    tasks["SICK-R"] = read("sts/sick", f"{pair},score=score")
    return senteval(encoder, tasks, seed=1111, **encoding)


def sib200(code: str, split: str) -> Rows:
    """Documents and topics of SIB-200 in a language of FLORES."""
    return read("sib200/sib200_a18", "text=text,label=category", where={"lang": code, "split": split})


def sib200_sets(peer: Peer) -> tuple[Rows, Rows, dict[str, Rows]]:
    """Its English training and dev documents, and the test documents of English and the peer's languages."""
    languages = {code: language_code(code.split("_")[0]) for code in SIB200}
    tests = {name: sib200(code, "test") for code, name in languages.items() if name in ("en", *peer.languages)}
    return sib200(SIB200[0], "train"), sib200(SIB200[0], "dev"), tests


def zero_shot_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """SIB-200 topics: heads on frozen vectors trained in English, tested in every language."""
    train, dev, tests = sib200_sets(peer)
    metrics: Metrics = {}
    for head in ("linear", "mlp"):
        metrics |= zero_shot(
            encoder, train, dev, tests, train_language="en", name="sib200", head=head, seed=SEED, **encoding
        )
    return metrics


def trained_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """SIB-200 topics with the encoder trained too."""
    train, dev, tests = sib200_sets(peer)
    # In float32, whatever the other units take: small steps are lost on bfloat16 weights.
    fresh = load_encoder(str(peer.folder), dtype="float32")
    return zero_shot(
        fresh, train, dev, tests, train_language="en", name="sib200", head="trained", seed=SEED, **encoding
    )


def nli_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """XNLI dev, a head on frozen vectors trained on 15,000 English MultiNLI pairs; a tenth of the premises chooses."""
    rows = read("nli/mnli15k_wide.train", "premise=premise_en,hypothesis=hypothesis_en,label=label")
    train = [row for row in rows if not held(row["premise"])]
    dev = [row for row in rows if held(row["premise"])]
    wide = [language for language in ("en", "zh", "sw", "ur") if language in ("en", *peer.languages)]
    tests = {
        language: read("nli/xnli_wide.dev", f"premise=premise_{language},hypothesis=hypothesis_{language},label=label")
        for language in wide
    }
    if "de" in peer.languages:
        tests["de"] = read("nli/xnli_dev_de", "premise=premise,hypothesis=hypothesis,label=label")
    return nli(
        encoder,
        train,
        dev,
        tests,
        train_language="en",
        name="xnli",
        head="mlp",
        split="dev",
        epochs=20,
        seed=SEED,
        **encoding,
    )


def paraphrase_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """PAWS-X German: a tenth of the pairs gives the threshold, the others are tested."""
    if "de" not in peer.languages:
        return {}
    rows = read("pawsx/pawsx_de.dev", "sentence1=sentence1,sentence2=sentence2,label=label")
    tune = [row for row in rows if held(row["sentence1"])]
    test = [row for row in rows if not held(row["sentence1"])]
    return pair_classification(encoder, test, tune=tune, language="de", name="pawsx", split="dev", **encoding)


def removal_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """Language bias on 500 lines of NTREX and Tatoeba's accuracy, after the removal of one component (CMLM, 5.2).

    Components are fitted on the sentences tested, as the paper does it.
    """
    chosen = ["en", *(language for language in NTREX if language in peer.languages)]
    ntrex = {language: read("news/ntrex128_xnli.test", f"text={language}")[:BIAS_LINES] for language in chosen}
    texts = {language: [row["text"] for row in rows] for language, rows in ntrex.items()}
    metrics = language_bias(encoder, texts, name="ntrex", debias="self", **encoding)
    for code in (code for code in TATOEBA if language_code(code) in peer.languages):
        pair = ("en", language_code(code))
        rows = sides(read("tatoeba/tatoeba_v1_xnli15", "source=english,target=text", where={"src_lang": code}))
        fitted = fit_debias(encoder, dict(zip(pair, rows, strict=True)), **encoding)
        metrics |= tatoeba(DebiasedEncoder(encoder, fitted), *rows, languages=pair, name="pcr1", **encoding)
    return mean_over_languages(metrics)


def mining_unit(encoder: Any, peer: Peer, encoding: dict[str, Any]) -> Metrics:
    """Segments of Debian's package descriptions, out of order: mined by margin, held against the md5 alignment."""
    metrics: Metrics = {}
    for language in (language for language in ("de", "fr", "it") if language in peer.languages):
        rows = read(f"ddtp/en-{language}.test", "source=en,target=xx")
        gold = {(row["source"], row["target"]) for row in rows}
        # Sorted texts: neither the order of the file nor that of the other side gives anything away.
        english, other = (sorted({pair[side] for pair in gold}) for side in (0, 1))
        vectors = [
            embed(encoder, texts, language=code, **encoding) for texts, code in ((english, "en"), (other, language))
        ]
        mined = mine_bitext(*vectors, k=4, margin="ratio", retrieval="max")
        prefix = metric_prefix("ddtp", "mining-k4-ratio", f"en-{language}", "test")
        pairs = [(english[i], other[j]) for i, j in zip(mined.source, mined.target, strict=True)]
        metrics |= dict(_precisions(prefix, pairs, gold))
    return mean_over_languages(metrics)


def _precisions(prefix: str, pairs: list[tuple[str, str]], gold: set[tuple[str, str]]) -> Iterator[tuple[str, float]]:
    right = 0
    for count, pair in enumerate(pairs, start=1):
        right += pair in gold
        if count in MINED:
            yield f"{prefix}/precision@{count}", right / count
    yield f"{prefix}/precision", right / max(len(pairs), 1)
    yield f"{prefix}/recall", right / len(gold)
    yield f"{prefix}/pairs", len(pairs)
    yield f"{prefix}/gold", len(gold)


UNITS: dict[str, Callable[[Any, Peer, dict[str, Any]], Metrics]] = {
    "tatoeba": tatoeba_unit,
    "ntrex": ntrex_unit,
    "bucc": bucc_unit,
    "sts": sts_unit,
    "senteval": senteval_unit,
    "zero-shot": zero_shot_unit,
    "zero-shot-trained": trained_unit,
    "nli": nli_unit,
    "paraphrase": paraphrase_unit,
    "mining": mining_unit,
    "removal": removal_unit,
}
# Without the one that a single table of the campaign asks for.
USUAL_UNITS = [unit for unit in UNITS if unit != "removal"]
