from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import make_pairs

from hf_xlsr.data.sources import as_list, open_source
from hf_xlsr.runs.recipe import load_runs, merge, parse_yaml, recipe_names
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError

# Section 4.1 and tables 2, 5-9 and figure 2 of the paper.
PAPER = {
    "data.max_length": 200,
    "tokenizer.vocab_size": 50_000,
    "model.encoder.num_hidden_layers": 2,
    "model.encoder.hidden_size": 512,
    "model.encoder.num_attention_heads": 8,
    "model.encoder.intermediate_size": 1024,
    "model.encoder.hidden_dropout_prob": 0.1,
    "model.encoder.attention_probs_dropout_prob": 0.1,
    "model.generative_task": "ugt",
    "model.label_mode": "accumulate",
    "model.generative_weight": 1.0,
    "model.alignment_weight": 2.0,
    "model.similarity_weight": 2.0,
    "training.learning_rate": 1e-3,
    "training.per_device_train_batch_size": 128,
    "training.num_train_epochs": 12,
    "training.warmup_steps": 3 / 12,
    "data.fraction": 1.0,
}
DEPARTURES: dict[str, dict[str, Any]] = {
    "lightweight_en_fr": {},
    "lightweight_en_de": {},
    "lightweight_en_es": {},
    "lightweight_en_it": {"training.num_train_epochs": 30, "training.warmup_steps": 6 / 30},
    "lightweight_en_fr_released": {"model.label_mode": "set"},
    **{f"lightweight_ablation_layers/layers-{n}": {"model.encoder.num_hidden_layers": n} for n in (1, 2, 3, 4, 5, 6)},
    **{
        f"lightweight_ablation_tasks/{task.replace('+', '-')}": {"model.generative_task": task}
        for task in ("mlm", "smlm", "xtr", "mlm+xtr", "ugt")
    },
    "lightweight_ablation_contrast/ugt": {"model.alignment_weight": 0.0, "model.similarity_weight": 0.0},
    "lightweight_ablation_contrast/ugt-align": {"model.similarity_weight": 0.0},
    "lightweight_ablation_contrast/ugt-align-sim": {},
    **{f"lightweight_ablation_batch/batch-{n}": {"training.per_device_train_batch_size": n} for n in (64, 128, 256)},
    **{f"lightweight_ablation_corpus/corpus-{n:g}": {"data.fraction": n / 100} for n in (12.5, 25, 50, 100)},
    **{
        f"lightweight_ablation_width/width-{n}": {
            "model.encoder.hidden_size": n,
            "model.encoder.num_attention_heads": n // 64,
            "model.encoder.intermediate_size": 2 * n,
        }
        for n in (128, 256, 512)
    },
}
# Table 9 and section 3.4 of the dual momentum paper.
MOMENTUM_PAPER = {
    "model.queue_size": 409_600,
    "model.temperature": 0.04,
    "model.momentum": 0.999,
    "model.dropout": 0.1,
    "model.pooling": "mean",
    "training.num_train_epochs": 15,
    "training.per_device_train_batch_size": 1024,
    "training.learning_rate": 4e-5,
    "training.lr_scheduler_type": "cosine",
    "training.warmup_steps": 400,
    "training.max_grad_norm": 10.0,
    "training.weight_decay": 1e-4,
}
SMALLER: dict[str, Any] = {"model.queue_size": 204_800}
MOMENTUM_DEPARTURES: dict[str, dict[str, Any]] = {
    "moco_bert_en_zh": {},
    "moco_bert_en_zh_nli": {"model.nli_weight": 0.1, "training.nli_batch_size": 128},
    **{f"moco_bert_ablation_temperature/t-{t}": {**SMALLER, "model.temperature": t} for t in (0.01, 0.04, 0.07, 0.1)},
    **{f"moco_bert_ablation_pooling/{mode}": {**SMALLER, "model.pooling": mode} for mode in ("mean", "max", "cls")},
    **{
        f"moco_bert_ablation_queue/queue-{n}k": {"model.queue_size": size}
        for n, size in ((1, 1024), (4, 4096), (16, 16384), (64, 65536), (204, 204_800), (409, 409_600))
    },
    **{
        f"moco_bert_ablation_batch/batch-{n}": {**SMALLER, "training.per_device_train_batch_size": n}
        for n in (256, 512, 1024)
    },
    "moco_bert_ablation_momentum/with-momentum": SMALLER,
    "moco_bert_ablation_momentum/without-momentum": {**SMALLER, "model.use_momentum": False},
}
SHRINK = """
tokenizer: {vocab_size: 80, algorithm: bpe}
model: {encoder: {hidden_size: 16, num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 256}}
training:
  max_steps: 2
  per_device_train_batch_size: 8
  logging_steps: 1
  eval_steps: 2
  save_steps: 2
  dataloader_num_workers: 0
  precision: float32
"""


def every_run() -> list[dict[str, Any]]:
    return [run for name in recipe_names() for run in load_runs(name)]


def value_of(recipe: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        recipe = recipe[part]
    return recipe


def test_every_recipe_of_the_paper_has_its_row_and_every_row_its_recipe() -> None:
    ours = {run["name"] for run in every_run() if run["name"].startswith("lightweight_")}
    small = {name for name in ours if name.endswith(("_small", "_open"))}
    assert ours - small == set(DEPARTURES)
    momentum = {run["name"] for run in every_run() if run["name"].startswith("moco_bert_")}
    assert momentum - {"moco_bert_ablation_queue/queue-1600k"} == set(MOMENTUM_DEPARTURES)  # which the paper could not


@pytest.mark.parametrize(
    "run",
    [run for run in every_run() if run["method"] in ("lightweight", "dual_momentum")],
    ids=lambda run: run["name"],
)
def test_recipe_has_the_papers_values_and_runs(
    run: dict[str, Any], write_pairs: Any, tiny_encoder_folder: str, tmp_path: Path
) -> None:
    for paper, departures in ((PAPER, DEPARTURES), (MOMENTUM_PAPER, MOMENTUM_DEPARTURES)):
        for key, value in {**paper, **departures[run["name"]]}.items() if run["name"] in departures else ():
            assert value_of(run, key) == (pytest.approx(value) if isinstance(value, float) else value), key
    shrunk = merge(run, yaml.safe_load(SHRINK))
    if run["method"] == "dual_momentum":
        shrink_momentum(shrunk, tiny_encoder_folder, tmp_path)
    else:
        shrunk["model"]["encoder"].update(num_attention_heads=2, hidden_size=16)
    languages = run["languages"]
    rows = {"train": write_pairs("train.tsv", 60), "dev": write_pairs("dev.tsv", 10, seed=2)}
    rows["test"] = write_pairs("test.tsv", 10, seed=3)
    shrunk["data"].update({split: {"path": str(path)} for split, path in rows.items()}, held_out=[])
    shrunk["data"]["cleaning"] = [step for step in shrunk["data"]["cleaning"] if step != "language"]
    shrunk["evaluation"]["pool"] = None
    shrunk["output_dir"] = str(tmp_path / "run")
    result = train_recipe(shrunk)
    assert not result.stopped
    assert "-".join(languages[:2]) in {key.split("/")[1] for key in result.metrics}
    assert list((tmp_path / "run" / "model").rglob("model.safetensors"))
    for file in ("results.json", "README.md", "loss.png", "tsne.png"):
        assert (tmp_path / "run" / file).stat().st_size > 0, file


def shrink_momentum(run: dict[str, Any], encoder: str, folder: Path) -> None:
    del run["tokenizer"], run["model"]["encoder"]
    run["model"].update(encoders=dict.fromkeys(run["languages"], encoder), queue_size=32)
    run["data"]["max_length"] = 32
    run["training"]["nli_batch_size"] = 4
    if run["nli"]["train"]:
        rows = "".join(f"one two\tred\t{label % 3}\n" for label in range(12))
        (folder / "nli.tsv").write_text("premise\thypothesis\tlabel\n" + rows, "utf-8")
        run["nli"]["train"] = {"path": str(folder / "nli.tsv")}


def test_overrides_by_full_and_short_name() -> None:
    (run,) = load_runs(
        "quickstart",
        ["--learning_rate", "5e-4", "--model.alignment_temperature=0.1", "--seed", "7", "--languages", "[en, no]"]
        + ["--bucket-by-length", "false"],
    )
    assert run["training"]["learning_rate"] == 5e-4 and run["model"]["alignment_temperature"] == 0.1
    assert run["seed"] == 7 and run["languages"] == ["en", "no"]  # Norwegian, not False
    assert run["training"]["bucket_by_length"] is False


def test_overriding_the_path_puts_the_corpus_aside() -> None:
    (run,) = load_runs("quickstart", ["--data.train.path", "pairs.tsv"])
    assert run["data"]["train"] == {"path": "pairs.tsv"}


@pytest.mark.parametrize("language", ["fr", "de"])
def test_every_source_of_the_open_recipes_opens(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_XLSR_DATA", str(tmp_path))
    (run,) = load_runs(f"lightweight_en_{language}_open")
    columns = ["en", "xx", "fr", "de", "md5", "doc", "surah", "lang", "set", "src_lang", "english", "text", "book"]
    for source in [*run["data"]["train"], run["data"]["dev"], run["data"]["test"]]:
        if "path" not in source:
            continue
        file = Path(source["path"].replace("${HF_XLSR_DATA}", str(tmp_path)))
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {name: f"{name} {index}" for name in columns}
            | {name: as_list(value)[0] for name, value in source.get("where", {}).items()}
            for index in range(300)
        ]
        pq.write_table(pa.Table.from_pylist(rows), file)
        read = list(open_source(source, languages=run["languages"], split="train"))
        assert read and set(read[0]) == {"source", "target", "source_lang", "target_lang"}
        assert len(read) < 50 if source.get("hash_split") == "held" else len(read) > 250


def test_a_pretrained_encoder_brings_its_tokenizer() -> None:
    (run,) = load_runs("quickstart", ["--model.encoder.path", "some/folder"])
    assert run["tokenizer"]["path"] == "some/folder"


def test_data_of_another_method_s_recipe() -> None:
    (french,), (german,) = load_runs("moco_en_fr_open"), load_runs("moco_en_de_open")
    (lightweight,) = load_runs("lightweight_en_fr_open")
    assert french["data"]["test"] == lightweight["data"]["test"] != german["data"]["test"]
    assert german["data"]["held_out"] == french["data"]["held_out"] == lightweight["data"]["held_out"]
    assert french["method"] == "dual_momentum" and german["data"]["max_length"] == 64
    assert german["model"]["queue_size"] == french["model"]["queue_size"]
    assert sorted(german["model"]["encoders"]) == ["de", "en"]  # the French one did not stay


def test_one_encoder_is_overridden_alone() -> None:
    (run,) = load_runs("moco_en_fr_open", ["--model.encoders.fr", "mine"])
    assert run["model"]["encoders"] == {"en": "${HF_XLSR_ENCODERS}/minilm-en", "fr": "mine"}


def test_ablations_are_runs_in_folders_of_their_own() -> None:
    runs = load_runs("lightweight_ablation_layers", ["--seed", "3"], only=["layers-1", "layers-6"])
    assert [run["model"]["encoder"]["num_hidden_layers"] for run in runs] == [1, 6]
    assert [run["seed"] for run in runs] == [3, 3]
    assert [Path(run["output_dir"]).name for run in runs] == ["layers-1", "layers-6"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning_rte", "1"], "did you mean 'training.learning_rate'"),
        (["--training.learnin_rate", "1"], "did you mean 'training.learning_rate'"),
        (["--model.temperature", "1"], "alignment_temperature|similarity_temperature"),
        (["--seed"], "--seed has no value"),
        (["seed", "1"], "'seed' is no option"),
        (["--seed", "[1"], "--seed line 1, column 3: not valid YAML"),
        (["--languages", "[en]"], "needs two"),
        (["--seed", "x"], "seed is 'x'"),
        (["--seed", "-1"], "seed is -1; use 0 or more"),
        (["--data.train", "bible", "--data.train.limit", "5"], "--data.train.limit and --data.train say two things"),
        (["--data.train.limit", "5", "--data.train", "a.tsv"], "--data.train and --data.train.limit say two things"),
    ],
)
def test_mistaken_overrides(arguments: list[str], message: str) -> None:
    with pytest.raises(XlsrError, match=message):
        load_runs("quickstart", arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: lightweight\nlanguages: [en, fr]\nmodle: {}", "unknown key 'modle'; did you mean 'model'"),
        ("method: lightweight\nmodel: {poling: mean}", "unknown key 'model.poling'; did you mean 'pooling'"),
        (
            "method: lightweight\nmodel: {encoder: {hiden_size: 8}}",
            "'model.encoder.hiden_size'; did you mean 'hidden_size'",
        ),
        ("method: lightweight\ndata: {train: {pth: x}}", "'data.train.pth'; did you mean 'path'"),
        ("method: lightwight", "method is 'lightwight'; did you mean 'lightweight'"),
        ("languages: [en, fr]", "has no 'method'"),
        ("a: [1", "line 1"),
        ("- 1", "not a mapping"),
        ("method: lightweight\nmodel: 3", "'model' is 3"),
        ("base: quikstart", "did you mean 'quickstart'"),
        ("base: [quickstart, moco_en_de_open]", r"base is \['quickstart', 'moco_en_de_open'\]; it takes one name"),
        ("base: 5", "base is 5; it takes one name"),
        ("data_from: 5\nmethod: lightweight", "data_from is 5; it takes one name"),
        ("method: [lightweight]", r"method is \['lightweight'\]; it takes one name"),
        ("method: lightweight\ntokenizer: {lowercase: no}", "tokenizer.lowercase is 'no'; it takes true or false"),
        ("method: lightweight\noverwrite: no", "overwrite is 'no'; it takes true or false"),
        ("method: lightweight\ndata: {max_length: long}", "data.max_length is 'long'; it takes a whole number"),
        ("method: lightweight\nmodel: {encoder: {model_type: brt}}", "model_type is 'brt'; did you mean 'bert'"),
        ("base: quickstart\nruns: [{name: a, sett: {seed: 5}}]", "not of the form"),
        ("base: quickstart\nruns: [{set: {seed: 5}}]", "not of the form"),
        ("base: quickstart\nruns: [{name: a}, {name: a}]", "two runs are called 'a'"),
        ("base: quickstart\nruns: [{name: 1}, {name: '1'}]", "two runs are called '1'"),
        ("base: quickstart\nseed: 3\nseed: 4", "line 3, column 1: .*the key 'seed' stands twice in one mapping"),
        ("base: quickstart\ndata: {train: a.tsv, train: b.tsv}", "the key 'train' stands twice"),
    ],
)
def test_mistaken_recipes(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(XlsrError, match=message):
        load_runs(str(path))


def test_recipes_that_rest_on_themselves(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text(f"base: {one}\n")
    with pytest.raises(
        XlsrError, match=r"one.yaml' rests on itself, by base or data_from \(.*one.yaml on .*one.yaml\)"
    ):
        load_runs(str(one))
    one.write_text(f"base: {other}\n")
    other.write_text(f"method: lightweight\ndata_from: {one}\n")
    with pytest.raises(XlsrError, match="one.yaml on .*other.yaml on .*one.yaml"):
        load_runs(str(one))


def test_a_recipe_of_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes("description: Übung".encode("latin-1"))
    with pytest.raises(XlsrError, match="is not in UTF-8 .*; save it so"):
        load_runs(str(path))


def test_unknown_recipe_and_run() -> None:
    with pytest.raises(XlsrError, match="did you mean 'quickstart'"):
        load_runs("quikstart")
    with pytest.raises(XlsrError, match="recipe file 'gone.yaml' does not exist"):
        load_runs("gone.yaml")
    with pytest.raises(XlsrError, match="no run 'layer-1'; did you mean 'layers-1'"):
        load_runs("lightweight_ablation_layers", only=["layer-1"])
    with pytest.raises(XlsrError, match="leave --only out"):
        load_runs("quickstart", only=["x"])


def test_yaml_reads_numbers_and_languages_as_people_mean_them() -> None:
    assert parse_yaml("[1e-3, 2E5, no, yes, true, 1.5, on]", "x") == [1e-3, 2e5, "no", "yes", True, 1.5, "on"]
    assert parse_yaml("{day: 2024-05-01, at: 2024-05-01 10:00:00}", "x") == {
        "day": "2024-05-01",
        "at": "2024-05-01 10:00:00",
    }
    # What `<<` brings may be said anew, also where it is brought on.
    assert parse_yaml("a: &a {p: 1}\nb: &b {q: 2}\nc: {<<: *a, <<: *b}", "x")["c"] == {"p": 1, "q": 2}
    assert parse_yaml("a: &a {p: 1}\nb: &b {<<: *a, p: 2}\nc: {<<: *b, p: 3}", "x")["c"] == {"p": 3}


def test_names_and_languages_that_yaml_does_not_read_as_words_or_lists(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: quickstart\nruns: [{name: 1, set: {seed: 1}}, {name: 2024-05-01, set: {seed: 2}}]")
    assert [run["name"] for run in load_runs(str(path))] == ["mine/1", "mine/2024-05-01"]
    assert [run["seed"] for run in load_runs(str(path), only=["1"])] == [1]
    path.write_text("base: cmlm_base\nname: 7\nlanguages: en")
    (run,) = load_runs(str(path))
    assert run["languages"] == ["en"] and run["name"] == "7"


def test_tiny_pairs_are_learnable_material() -> None:
    assert len({pair["source"] for pair in make_pairs(200)}) > 150
