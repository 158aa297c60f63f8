"""What `behaviour.py` measures on: stand-in data, stock encoders, the cases of the protocols, the recipes trained."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]

WORDS = {
    "en": "one two three four five six seven eight nine ten red green blue house tree river stone bird fish king",
    "fr": "un deux trois quatre cinq six sept huit neuf dix rouge vert bleu maison arbre eau pierre oiseau poisson roi",
}
FRAME = ["<pad>", "<unk>", "<mask>", "<s>", "</s>"]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 48,
    "initializer_range": 0.3,  # vectors far apart, so that no choice hangs on a last digit
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Word-for-word translations of random word strings; no sentence occurs twice."""
    rng = random.Random(seed)
    english = WORDS["en"].split()
    french = WORDS["fr"].split()
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        numbers = [rng.randrange(len(english)) for _ in range(rng.randint(2, 7))]
        source = " ".join(english[number] for number in numbers)
        pairs[source] = " ".join(french[number] for number in numbers)
    return list(pairs.items())


def write(name: str, header: str, rows: Sequence[Row]) -> str:
    lines = ["\t".join(map(str, row)) for row in rows]
    if header:
        lines.insert(0, header.replace(" ", "\t"))
    Path(name).write_text("\n".join(lines) + "\n", "utf-8")
    return name


@cache
def encoder() -> str:
    """A random stock BERT with a word-level tokenizer, as a folder of the Hub and of sentence-transformers at once."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    english = [f"▁{word}" for word in WORDS["en"].split()]
    french = [f"▁{word}" for word in WORDS["fr"].split()]
    vocabulary = dict.fromkeys([*FRAME, *english, *french])
    ids = {word: number for number, word in enumerate(vocabulary)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 3), ("</s>", 4)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=32,
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        bos_token="<s>",
        eos_token="</s>",
    )
    tokenizer.save_pretrained("encoder")
    tokenizer.save_pretrained("tokenizer")

    torch.manual_seed(0)
    bert = BertModel(BertConfig(vocab_size=len(ids), pad_token_id=0, **SIZES, **NO_DROPOUT))
    table = bert.embeddings.word_embeddings.weight.data
    english_ids = [ids[word] for word in english]
    french_ids = [ids[word] for word in french]
    # Translations are near, so that no protocol is at chance.
    table[french_ids] = 0.8 * table[french_ids] + table[english_ids]
    bert.save_pretrained("encoder")

    transformer = Transformer("encoder", max_seq_length=32)
    modules = [transformer, Pooling(SIZES["hidden_size"], pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save("stock", create_model_card=False)
    return "stock"


def routed_encoder(stock: str) -> None:
    """The stock encoder twice, the second time with other weights, behind routes `first` and `second`."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    routes = {name: list(SentenceTransformer(stock, device="cpu").children()) for name in ("first", "second")}
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in routes["second"][0].parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    router = Router(routes, default_route="first")
    SentenceTransformer(modules=[router], device="cpu").save("routed", create_model_card=False)


def protocol_cases(pairs: list[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Name and words of each case; writes its files."""
    of_pairs = ["--data", write("pairs.tsv", "en fr", pairs), "--columns", "source=en,target=fr"]
    for name in ("tatoeba", "tatoeba-laser", "tatoeba-xtreme", "tatoeba-mteb", "xsim", "xsim-pp", "xsr", "mining"):
        yield name, ["--protocol", name, *of_pairs]
    yield "prompt", ["--protocol", "tatoeba,xsim", *of_pairs, "--prompt", "red ", "--k", "2", "--margin", "distance"]
    yield "xsr-pool", ["--protocol", "xsr", *of_pairs, "--pool", "pool.tsv"]
    for debias in ("self", "fitted"):
        words = ["--protocol", "tatoeba", "--data", "pairs.tsv", "--columns", "source=en,target={lang}"]
        yield f"tatoeba-debias-{debias}", [*words, "--languages", "en,fr", "--debias", debias]
    many = [(*row, ("fra", "deu")[n % 2]) for n, row in enumerate(pairs)]
    columns = "source=english,target=text,target_lang=src_lang"
    several = ["--data", write("several.tsv", "english text src_lang", many), "--columns", columns]
    yield "several", ["--protocol", "tatoeba,xsr", *several, "--languages", "en", "--name", "several"]

    bucc = ["--protocol", "bucc"]
    for option, gold_option, rows in (("data", "gold", pairs[:30]), ("tune", "tune-gold", pairs[30:])):
        english = write(f"{option}.en", "", [(f"en-{option}-{n}", row[0]) for n, row in enumerate(rows)])
        french = write(f"{option}.fr", "", [(f"fr-{option}-{n}", row[1]) for n, row in enumerate(rows)])
        gold = write(f"{option}.gold", "", [(f"en-{option}-{n}", f"fr-{option}-{n}") for n in range(0, len(rows), 2)])
        bucc += [f"--{option}", english, french, f"--{gold_option}", gold]
    yield "bucc", bucc
    yield "bucc-setting", [*bucc, "--k", "2", "--margin", "absolute", "--name", "hidden"]

    scored = [(*row, n * 7 % 6, "ab"[n % 2], "test") for n, row in enumerate(pairs)]
    sts = [write(f"{name}.tsv", "sentence1 sentence2 score subset split", scored[::-1]) for name in ("STS12", "STS13")]
    yield "sts", ["--protocol", "sts", "--data", *sts, "--languages", "en"]
    judged = [(*row, n % 3 % 2, ("test", "dev")[n > 30]) for n, row in enumerate(pairs)]
    paws = write("paws.tsv", "sentence1 sentence2 label split", judged)
    words = ["--protocol", "pair-classification", "--data", paws, "--tune", paws]
    yield "pair-classification", [*words, "--languages", "en"]

    words = ["--protocol", "language-bias", "--data", "pairs.tsv", "--columns", "text={lang}"]
    words += ["--languages", "en,fr", "--k", "3"]
    yield "language-bias-alone", words
    yield "language-bias-self", [*words, "--debias", "self"]
    yield "language-bias-fitted", [*words, "--debias", "fitted"]
    words = ["--protocol", "search", "--data", "pairs.tsv", "--columns", "text={lang}", "--languages", "en,fr"]
    yield "search", [*words, "--debias", "self"]

    classes = splits([(english, int("red" in english or "king" in english)) for english, _ in pairs])
    tagged = [(language, *row) for language in ("eng_Latn", "fra_Latn", "deu_Latn") for row in classes]
    topics = write("topics.tsv", "lang text label split", tagged)
    words = ["--protocol", "zero-shot", "--data", topics, "--train-language", "en", "--head"]
    yield "zero-shot-linear", [*words, "linear"]
    yield "zero-shot-mlp", [*words, "mlp", "--epochs", "2"]
    yield "zero-shot-trained", [*words, "trained", "--epochs", "2"]

    labels = ("entailment", "neutral", "contradiction")
    inference = splits([(*row, labels[n // 8 % 3]) for n, row in enumerate(pairs)])
    xnli = write("xnli.tsv", "premise_en hypothesis_en label split", inference)
    columns = "premise=premise_{lang},hypothesis=hypothesis_{lang}"
    words = ["--protocol", "nli", "--data", xnli, "--columns", columns, "--languages", "en"]
    yield "nli", [*words, "--epochs", "2"]

    halves = [(english, french, n % 2) for n, (english, french) in enumerate(pairs)]
    single = [(english, label) for english, _, label in halves]
    senteval = [f"MR={write('reviews.tsv', 'text label', single)}"]
    senteval += [write(f"{task}.tsv", "text label split", splits(single)) for task in ("SST2", "TREC")]
    for task in ("MRPC", "SICK-E"):
        senteval.append(write(f"{task}.tsv", "sentence1 sentence2 label split", splits(halves)))
    graded = splits([(*row, 1 + n * 7 % 5) for n, row in enumerate(pairs)])
    senteval.append(write("SICK-R.tsv", "sentence1 sentence2 score split", graded))
    yield "senteval", ["--protocol", "senteval", "--data", *senteval, "--languages", "en"]


def splits(rows: Sequence[Row]) -> list[Row]:
    return [(*row, ("train", "train", "dev", "test")[n // 2 % 4]) for n, row in enumerate(rows)]


STEPS = {"eval_strategy": "steps", "eval_steps": 6, "save_strategy": "steps", "save_steps": 6}


def training_rows() -> dict[str, dict[str, Any]]:
    """A recipe for every trainer, and more where a method has parts that it leaves out."""
    # Data.
    pairs: dict[str, Any] = {"train": {"path": "train.tsv"}, "max_length": 32, "cleaning": ["normalize"]}
    measured = {**pairs, "dev": {"path": "dev.tsv"}, "test": {"path": "dev.tsv"}}
    cleaning = ["normalize", "drop_identical", "deduplicate"]
    dirty = {**measured, "train": {"path": "dirty.tsv"}, "cleaning": cleaning}
    german = {"path": "german.tsv", "languages": ["en", "de"]}
    french = {name: {**dirty[name], "languages": ["en", "fr"]} for name in ("train", "dev", "test")}
    several = {**dirty, **french, "train": [french["train"], german]}
    text = {"path": "text.tsv", "columns": "text=text,document=document,lang=lang"}
    nli = {"train": {"path": "nli.tsv", "languages": ["en"]}}
    labelled = {"train": {"path": "labelled.tsv"}, "dev": {"toy": {"path": "labelled_dev.tsv"}}, "max_length": 32}

    # Models and trainings.
    tokenizer = {"path": "tokenizer"}
    new = {"model_type": "bert", **SIZES}
    still = {**new, **NO_DROPOUT}
    both = {"encoders": {"en": "encoder", "fr": "encoder"}}
    adam = {"optim": "adamw_torch", "learning_rate": 5e-3}
    queue_alone = {"in_batch_negatives": False, "mask_stale_keys": False, "mask_duplicates": False}
    plain = {"warmup_steps": 0, "weight_decay": 0.0}
    cmlm = {"method": "cmlm", "data": {**pairs, "text": text}, "nli": nli, "tokenizer": tokenizer}
    task = {"texts": "single", "labels": ["calm", "red"]}

    return {
        "lightweight": {
            "method": "lightweight",
            "data": measured,
            "tokenizer": tokenizer,
            "model": {"encoder": still, "similarity_reduction": "sum"},
            "training": STEPS,
        },
        "lightweight_defaults": {  # its own vocabulary, dropout, similarity and alignment at their default weights
            "method": "lightweight",
            "data": pairs,
            "tokenizer": {"vocab_size": 75},
            "model": {"encoder": new},
            "training": adam,
        },
        "lightweight_xtr": {
            "method": "lightweight",
            "data": dirty,
            "tokenizer": tokenizer,
            "model": {
                "encoder": new,
                "generative_task": "xtr",
                "alignment_normalize": True,
                "alignment_temperature": 0.05,
                "similarity_normalize": True,
            },
            "training": adam,
        },
        "dual_momentum": {
            "method": "dual_momentum",
            "data": pairs,
            "nli": {"train": {"path": "nli.tsv"}},
            "model": {
                **both,
                "dropout": 0.0,
                "queue_size": 32,
                "momentum": 0.9,
                **queue_alone,
                "in_batch_negatives": True,
                "nli_dropout": 0.0,
            },
            "training": {"nli_batch_size": 8, "learning_rate": 5e-5, **plain},
        },
        "dual_momentum_dropout": {
            "method": "dual_momentum",
            "data": measured,
            "model": {**both, **queue_alone, "dropout": 0.1, "queue_size": 64, "momentum": 0.999},
            "training": {**adam, **plain},
        },
        "dual_momentum_adapters": {
            "method": "dual_momentum",
            "data": pairs,
            "model": {**both, **queue_alone, "queue_size": 32, "momentum": 0.999},
            "adapters": {"rank": 2},
            "training": {**adam, **plain},
        },
        "hictl": {
            "method": "hictl",
            "data": pairs,
            "tokenizer": tokenizer,
            "model": {"encoder": still, "sentence_temperature": 0.1, "word_weight": 0.0},
        },
        "hictl_words": {
            "method": "hictl",
            "languages": ["en", "fr", "de"],
            "data": several,
            "tokenizer": tokenizer,
            "model": {"encoder": new, "negative_words": 16},
            "training": adam,
        },
        "cmlm": {
            **cmlm,
            "model": {"encoder": still, "projections": 3, "retrieval_normalize": True, "retrieval_scale": 20.0},
            "training": {"retrieval_batch_size": 12, "nli_batch_size": 8},
        },
        "cmlm_stages": {  # strategy S3: CMLM, then all tasks, with the default projections and dropout
            **cmlm,
            "model": {"encoder": {**new, "max_position_embeddings": 64}},
            "training": {**adam, "retrieval_batch_size": 12, "nli_batch_size": 8},
            "stages": [
                {"name": "first", "set": {"model": {"retrieval_weight": 0.0, "nli_weight": 0.0}}},
                {"name": "second", "set": {}},
            ],
        },
        "fine_tune": {
            "method": "classification",
            "data": labelled,
            "task": task,
            "model": {"start": "encoder", "dropout": 0.0, "classifier_dropout": 0.0},
            "training": STEPS,
        },
        "translation": {
            "method": "translation",
            "data": measured,
            "model": {"start": "encoder", "dropout": 0.0, "decoder_layers": 1},
            "training": {"optim": "adamw_torch", "learning_rate": 0.01},  # enough for words to differ
        },
    }


def write_training_data() -> None:
    rows = make_pairs(96, seed=1)
    english = [row[0] for row in rows]
    dev = make_pairs(12, seed=2)
    write("train.tsv", "", rows)
    write("dev.tsv", "", dev)
    write("german.tsv", "", make_pairs(40, seed=8))

    spoilt = [("one two", "one two"), ("three", ""), ("only one column",), ("\u2168  nine ", "neuf\u00a0neuf")]
    write("dirty.tsv", "", [*rows[:60], *dev[:4], *spoilt, *rows[:9], *rows[60:]])
    write("text.tsv", "text document lang", [(line, f"d{n // 6}", "en") for n, line in enumerate(english)])

    rng = random.Random(3)
    inference = []
    for premise, hypothesis in zip(english, english[::-1], strict=True):
        inference.append((premise, hypothesis, rng.randrange(3)))
    write("nli.tsv", "premise hypothesis label", inference)
    classes = [(line, rng.choice(["calm", "red"]), "en") for line in english]
    write("labelled.tsv", "text label lang", classes[13:])
    write("labelled_dev.tsv", "text label lang", classes[:13])
