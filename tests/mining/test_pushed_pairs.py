"""`hf-xlsr push PAIRS`: pairs become a dataset whose card states what was stored, and nothing else."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cli_helpers import failing
from corpus_helpers import METADATA, header_of, section
from datasets import Value, load_dataset
from hub_helpers import TOKEN, Hub, Repo
from mining_fakes import NumberEncoder, numbered, write_lines

from hf_xlsr.cli import main
from hf_xlsr.export import corpus, corpus_files, push_corpus, save_corpus
from hf_xlsr.mining import mine_bitext, stages, write_pairs
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import file_sha256

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[2]
STATED = ("--license", "cc-by-sa-4.0", "--sources", "Wikipedia=cc-by-sa-4.0")
REPO = "datasets/me/en-fr-mined"
LABELS_HEADER = "label\tscore\tsource\ttarget"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two texts, known pairs and MODEL, a `NumberEncoder`."""
    home = tmp_path / "someone"
    home.mkdir()
    monkeypatch.chdir(home)
    write_lines(Path("en.txt"), [*numbered("en", 40), "en 3 word", "en 3 word"])
    write_lines(Path("fr.txt"), numbered("fr", 40, start=5, seed=1))
    write_lines(Path("known.tsv"), [f"en {number} word\tfr {number} word" for number in range(100, 300)])
    Path("MODEL").mkdir()
    Path("MODEL/config.json").write_text("{}")
    monkeypatch.setattr(stages, "load_encoder", lambda *options: NumberEncoder())
    monkeypatch.setattr(corpus, "can_plot", lambda: False)  # which takes longest
    return home


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def mine(*words: str, output: str = "mined.tsv") -> Path:
    fixed = ("mine", "en.txt", "fr.txt", "--model", "MODEL", "--languages", "en,fr", "--output", output, "--json")
    assert main([*fixed, *words]) == 0
    return Path(output)


def push(pairs: Path | str, *words: str) -> None:
    assert main(["push", "--yes", str(pairs), "--repo=me/en-fr-mined", *STATED, *words]) == 0


def card_of(hub: Hub) -> str:
    return hub.repos[REPO].files["README.md"].decode()


def pulled_rows(hub: Hub, folder: Path) -> Any:
    pulled = hub.pull(REPO, folder)
    return load_dataset(str(pulled), split="train", cache_dir=str(folder / "cache"))


def test_pushed_pairs_load_as_they_were_mined(hub: Hub, tmp_path: Path) -> None:
    pairs = mine(output="mined.jsonl")
    push(pairs)

    dataset = pulled_rows(hub, tmp_path / "pulled")
    mined = [json.loads(line) for line in pairs.read_text("utf-8").splitlines()]
    expected = []
    for row in mined:
        expected.append(
            {
                "en": row["source"],
                "fr": row["target"],
                **{name: row[name] for name in dataset.features if name not in ("en", "fr")},
            }
        )
    assert dataset.to_list() == expected
    text, number, line = Value("string"), Value("float64"), Value("int64")
    assert dataset.features == {"en": text, "fr": text, "score": number, "source_line": line, "target_line": line}


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "parquet"])
def test_any_text_comes_back(suffix: str, hub: Hub, tmp_path: Path) -> None:
    texts = [
        'a "quoted" word',
        "two\nlines",
        "tab\there",
        "🙂 família 👩‍👩‍👧",
        "NA",
        "'single'",
        "back\\slash",
        "=1+1",
        '"',
    ]
    rows = [{"score": 1.5, "source": text, "target": f"{text} fr"} for text in texts]
    write_pairs(f"pairs.{suffix}", rows, columns=("score", "source", "target"))

    push(f"pairs.{suffix}", "--languages", "en,fr")

    expected = [{"en": row["source"], "fr": row["target"], "score": 1.5} for row in rows]
    assert pulled_rows(hub, tmp_path / "pulled").to_list() == expected


def test_header_describes_the_dataset(hub: Hub) -> None:
    push(mine())
    header = header_of(card_of(hub))

    assert header["language"] == ["en", "fr"]
    assert header["license"] == "cc-by-sa-4.0"
    assert header["task_categories"] == ["translation", "sentence-similarity"]
    assert header["size_categories"] == ["n<1K"]
    assert header["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}
    ]
    info = header["dataset_info"]
    assert [feature["name"] for feature in info["features"]] == ["en", "fr", "score"]
    parquet = hub.repos[REPO].files["data/train-00000-of-00001.parquet"]
    assert info["download_size"] == len(parquet)
    assert info["splits"][0]["num_examples"] == pq.ParquetFile(io.BytesIO(parquet)).metadata.num_rows


def test_card_states_what_was_stored(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "can_plot", lambda: True)
    pairs = mine("--known", "known.tsv", "--precision", "0.9", "--cleaning", "normalize,length")
    (step,) = json.loads(Path("mined.tsv.facts.json").read_text("utf-8"))["steps"]
    push(pairs)
    card = card_of(hub)

    made = section(card, "How the pairs were made")
    assert step["encoder"]["hash"] in made
    assert "`MODEL`" in made
    assert step["inputs"]["source"]["sha256"] in made
    assert "lines 42, sentences 41, duplicates 1" in made
    assert "| normalize | 42 | 0 |" in made
    estimate = step["estimate"]
    shares = [f"{estimate[name]:.1%}" for name in ("precision", "low", "high", "recall", "recall_low", "recall_high")]
    assert "{} ({} to {}) | {} ({} to {})".format(*shares) in section(card, "Quality")
    assert step["command"] in section(card, "Reproduce")
    assert json.loads(hub.repos[REPO].files["facts.json"])["steps"] == [step]
    assert {"report.html", "scores.png", "precision.png"} <= hub.repos[REPO].files.keys()


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        (("encoder", "name"), "owner/other-model", "`owner/other-model`"),
        (("encoder", "revision"), "c0ffee", "`c0ffee`"),
        (("threshold",), 1.2345, "1.2345"),
        (("estimate", "low"), 0.123, "12.3%"),
        (("inputs", "source", "duplicates"), 77, "duplicates 77"),
        (("settings", "k"), 9, "k 9"),
        (("command",), "hf-xlsr mine other.txt fr.txt", "hf-xlsr mine other.txt fr.txt"),
    ],
)
def test_card_follows_each_fact(path: tuple[str, ...], value: Any, shown: str, hub: Hub) -> None:
    pairs = mine("--known", "known.tsv")
    file = Path("mined.tsv.facts.json")
    facts = json.loads(file.read_text("utf-8"))
    push(pairs)
    assert shown not in card_of(hub)

    entry = facts["steps"][0]
    for name in path[:-1]:
        entry = entry[name]
    entry[path[-1]] = value
    file.write_text(json.dumps(facts), "utf-8")
    push(pairs)
    assert shown in card_of(hub)


def test_steps_follow_each_other(hub: Hub) -> None:
    mine()
    assert main("clean mined.tsv --languages en,fr --known known.tsv --output clean.jsonl".split()) == 0
    words = "filter clean.jsonl --model MODEL --languages en,fr --known known.tsv --identifier script"
    assert main([*words.split(), "--output", "kept.jsonl", "--json"]) == 0
    push("kept.jsonl")
    card = card_of(hub)

    made = section(card, "How the pairs were made")
    titles = [line for line in made.splitlines() if line.startswith("### ")]
    assert titles == ["### 1. `mine`", "### 2. `clean`", "### 3. `filter`"]
    assert "good pairs removed" in made  # what cleaning costs
    assert "probability" in section(card, "Columns")
    assert "half of them good" in section(card, "Quality")
    assert "Noise of other kinds lowers the precision" in section(card, "Quality")
    commands = section(card, "Reproduce").split("```sh\n")[1].split("\n```")[0].splitlines()
    assert [shlex.split(command)[1] for command in commands] == ["mine", "clean", "filter"]


def test_command_of_the_card_makes_the_same_pairs(hub: Hub) -> None:
    prompt = "Instruct: find it\nQuery:  "
    pairs = mine("--known", "known.tsv", "--prompt", prompt, "--many", "--k", "3")
    push(pairs)
    before = pairs.read_bytes()
    pairs.unlink()

    card = card_of(hub)
    assert "Query:  " in section(card, "How the pairs were made")
    command = section(card, "Reproduce").split("```sh\n")[1].split("\n```")[0]
    assert main(shlex.split(command)[1:]) == 0
    assert pairs.read_bytes() == before


def test_labels_are_in_the_card(hub: Hub) -> None:
    pairs = mine(output="pairs.jsonl")
    push(pairs)
    assert "No labels by hand" in section(card_of(hub), "Quality")

    rows = [json.loads(line) for line in pairs.read_text("utf-8").splitlines()]
    lines = [LABELS_HEADER]
    for row in rows:
        label = "accept" if row["source"].split()[1] == row["target"].split()[1] else "reject"
        lines.append(f"{label}\t1\t{row['source']}\t{row['target']}")
    write_lines(Path("labels.tsv"), lines)
    push(mine("--labels", "labels.tsv", "--precision", "0.8", output="pairs.jsonl"))

    card = card_of(hub)
    (step,) = json.loads(hub.repos[REPO].files["facts.json"])["steps"]
    quality = section(card, "Quality")
    assert f"accepted {step['labels']['accepted']}" in quality
    assert f"{len(rows)} labels" in quality  # the basis of the estimate
    assert "| unknown |" in quality  # labels give no recall
    assert "recall" in section(card, "Not known")


def test_nothing_is_invented(hub: Hub) -> None:
    write_lines(Path("pairs.tsv"), ["source\ttarget\tkind", "yes\toui\tx", "yes\toui\tx", "no\tnon\tx"])
    push("pairs.tsv")
    card = card_of(hub)

    assert "language" not in header_of(card)
    assert "Unknown" in section(card, "How the pairs were made")
    assert "Unknown" in section(card, "Reproduce")
    assert "not estimated" in section(card, "Quality")
    assert len(section(card, "Not known").strip().splitlines()) >= 4
    assert "equal to an earlier one | 1 |" in section(card, "Quality")
    assert "facts.json" not in card
    assert set(hub.repos[REPO].files) == {"README.md", "data/train-00000-of-00001.parquet"}


def test_no_folder_of_this_machine_is_sent(hub: Hub, folder: Path, capsys: Capture) -> None:
    fixed = ("mine", f"{folder}/en.txt", f"{folder}/fr.txt", "--model", f"{folder}/MODEL", "--languages", "en,fr")
    words = ("--known", f"{folder}/known.tsv", "--work", f"{folder}/work", "--output", f"{folder}/mined.tsv")
    assert main([*fixed, *words]) == 0
    push(folder / "mined.tsv")

    for name, content in hub.repos[REPO].files.items():
        assert b"someone" not in content, name
        assert str(folder.parent).encode() not in content, name


def test_changed_pairs_are_not_sent(hub: Hub, capsys: Capture) -> None:
    pairs = mine()
    with pairs.open("a") as file:
        file.write("1.0\tnew\tnouveau\n")
    assert "has changed" in failing(capsys, "push", "--yes", "mined.tsv", "--repo=me/en-fr-mined", *STATED)
    assert not hub.repos


def test_page_of_another_call_is_not_sent(hub: Hub) -> None:
    pairs = mine()
    Path("mined.tsv.report.html").write_text("<h1>private</h1>", "utf-8")
    push(pairs)
    assert "report.html" not in hub.repos[REPO].files


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--sources Wikipedia=mit", "--license"),
        ("--license mit", "--sources"),
        ("--license mit --sources Wikipedia", "'Wikipedia'"),
        ("--license mit --sources Wikipedia=", "'Wikipedia='"),
        ("--license my-own --sources Wikipedia=mit", "'my-own'"),
        ("--license other --sources Wikipedia=mit", "license_link"),
        ("--license mit --sources Wikipedia=mit --languages en,de", "en,fr"),
        ("--license mit --sources Wikipedia=mit --languages en", "got en"),
        ("--license mit --sources Wikipedia=mit --what all", "--what all"),
    ],
)
def test_refusals(words: str, key: str, hub: Hub, capsys: Capture) -> None:
    mine()
    assert key in failing(capsys, "push", "--yes", "mined.tsv", "--repo=me/en-fr-mined", *words.split())
    assert not hub.repos


def test_options_of_pairs_need_a_file(hub: Hub, capsys: Capture) -> None:
    assert "'mnied.tsv'" in failing(capsys, "push", "--yes", "mnied.tsv", "--repo=me/x", *STATED)


def test_links_are_refused(hub: Hub, capsys: Capture) -> None:
    mine().rename("moved.tsv")
    Path("mined.tsv").symlink_to("moved.tsv")
    assert "is a link" in failing(capsys, "push", "--yes", "mined.tsv", "--repo=me/en-fr-mined", *STATED)
    assert not hub.repos


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_refused_question_sends_nothing(answer: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    mine()
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["push", "mined.tsv", "--repo=me/en-fr-mined", *STATED]) == 1
    assert not hub.sent


def test_without_a_terminal_nothing_is_sent(hub: Hub, capsys: Capture) -> None:
    mine()
    assert "--yes" in failing(capsys, "push", "mined.tsv", "--repo=me/en-fr-mined", *STATED)
    assert not hub.sent


def test_dry_run_keeps_the_files_here(hub: Hub, tmp_path: Path, capsys: Capture) -> None:
    mine()
    words = ("--dry-run", "--output", "corpus")
    assert main(["push", "mined.tsv", "--repo=me/en-fr-mined", *STATED, *words]) == 0

    printed = capsys.readouterr().out
    assert "data/train-00000-of-00001.parquet" in printed
    assert "# en-fr-mined" in printed
    assert not hub.sent
    dataset = load_dataset("corpus", split="train", cache_dir=str(tmp_path / "cache"))
    assert len(dataset) == len(Path("mined.tsv").read_text("utf-8").splitlines()) - 1


def test_columns_that_nobody_knows_stay(hub: Hub, capsys: Capture) -> None:
    write_lines(Path("pairs.tsv"), ["source\ttarget\temail\tscore", "yes\toui\ta@b\t1.5"])
    push("pairs.tsv")
    assert "email" in capsys.readouterr().out
    assert "email" not in card_of(hub)


@pytest.mark.parametrize(
    ("header", "left_out"),
    [
        ("id\tsource\ttarget\tde", "id, de"),
        ("id\ten\tfr\tde", "id, de"),
        ("id\tsrc\ttrg\tde", "id, de"),
    ],
)
def test_columns_that_are_named_like_languages_are_listed(
    header: str, left_out: str, hub: Hub, capsys: Capture
) -> None:
    write_lines(Path("pairs.tsv"), [header, "7\tyes\toui\tja"])
    push("pairs.tsv", "--languages", "en,fr")
    assert f": {left_out}." in capsys.readouterr().out


def test_texts_of_a_file_without_header_are_not_listed(hub: Hub, capsys: Capture) -> None:
    write_lines(Path("pairs.tsv"), ["good morning\tbonjour", "no\tnon"])
    push("pairs.tsv")
    assert "Not sent" not in capsys.readouterr().out


def test_pushed_again(hub: Hub) -> None:
    push(mine())
    files = hub.repos[REPO].files
    files["data/train-00000-of-00002.parquet"] = b"old"
    files["data/test-00000-of-00001.parquet"] = b"mine"
    files["notes.md"] = b"mine"

    write_lines(Path("pairs.tsv"), ["source\ttarget", "yes\toui"])
    push("pairs.tsv")

    kept = {"data/test-00000-of-00001.parquet", "notes.md"}
    assert set(files) == {"README.md", "data/train-00000-of-00001.parquet", *kept}


def test_repository_of_others(hub: Hub, capsys: Capture) -> None:
    hub.repos[REPO] = Repo(files={"data.csv": b"a,b", "README.md": b"---\ntags: [x]\n---\n"})
    hub.repos["me/en-fr-mined"] = Repo()  # a model of that name is another repository
    mine()
    assert "other files" in failing(capsys, "push", "--yes", "mined.tsv", "--repo=me/en-fr-mined", *STATED)
    assert set(hub.repos[REPO].files) == {"data.csv", "README.md"}
    assert not hub.repos["me/en-fr-mined"].files


def test_private_and_address(hub: Hub, capsys: Capture) -> None:
    mine()
    push("mined.tsv", "--private")
    assert hub.repos[REPO].private
    assert "/datasets/me/en-fr-mined (private)" in capsys.readouterr().out


def test_tokens_are_not_sent(hub: Hub, capsys: Capture) -> None:
    mine()
    words = ("--license", "mit", "--sources", f"{TOKEN}=mit", "--title", f"by {TOKEN}")
    main(["push", "--yes", "mined.tsv", "--repo=me/en-fr-mined", *words])
    for content in hub.sent:
        assert TOKEN.encode() not in content


@pytest.mark.parametrize("place", ["facts", "page"])
def test_tokens_beside_the_pairs_are_refused(place: str, hub: Hub, tmp_path: Path) -> None:
    pairs = mine()
    file = Path("mined.tsv.facts.json")
    facts = json.loads(file.read_text("utf-8"))
    if place == "facts":
        facts["steps"][0]["inputs"]["source"]["name"] = f"{TOKEN}.txt"
    else:
        page = Path("mined.tsv.report.html")
        page.write_text(f"<p>{TOKEN}</p>", "utf-8")
        facts["page"] = file_sha256(page)
    file.write_text(json.dumps(facts), "utf-8")

    with pytest.raises(XlsrError, match="access token"):
        save_corpus(pairs, tmp_path / "corpus", METADATA)
    assert not (tmp_path / "corpus").exists()


def test_sources_stay_text(hub: Hub) -> None:
    attack = "<script>alert(1)</script> | [x](http://evil) ![p](http://evil/p)\n---\nlicense: mit"
    assert (
        main(
            [
                "push",
                "--yes",
                str(mine()),
                "--repo=me/en-fr-mined",
                "--license",
                "cc0-1.0",
                "--sources",
                f"{attack}=mit",
            ]
        )
        == 0
    )
    card = card_of(hub)
    assert header_of(card)["license"] == "cc0-1.0"
    body = section(card, "Sources and licences")
    for markup in ("<script", "](http", "\n---\n"):
        assert markup not in body.replace("\\<", "").replace("\\]", "")


def test_rows_are_written_in_small_groups_and_files(monkeypatch: pytest.MonkeyPatch, hub: Hub, tmp_path: Path) -> None:
    monkeypatch.setattr(corpus_files, "GROUP_ROWS", 7)
    monkeypatch.setattr(corpus_files, "SHARD_BYTES", 500)
    rows = [{"score": float(number), "source": f"en {number}", "target": f"fr {number}"} for number in range(100)]
    names = save_corpus(iter(rows), tmp_path / "corpus", METADATA)

    shards = [name for name in names if name.endswith(".parquet")]
    assert len(shards) > 2
    assert shards[-1] == f"data/train-{len(shards) - 1:05d}-of-{len(shards):05d}.parquet"
    groups = 0
    for name in shards:
        metadata = pq.ParquetFile(tmp_path / "corpus" / name).metadata
        groups += metadata.num_row_groups
        assert metadata.row_group(0).num_rows <= 7
    assert groups == 15
    dataset = load_dataset(str(tmp_path / "corpus"), split="train", cache_dir=str(tmp_path / "cache"))
    assert dataset["score"][:] == [row["score"] for row in rows]


def test_equal_pairs_give_equal_files(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "can_plot", lambda: True)
    pairs = mine("--known", "known.tsv")
    push(pairs)
    push(pairs)
    changed, deleted = hub.commits[-1]
    assert (changed, deleted) == ([], [])


def test_push_from_python(hub: Hub, tmp_path: Path) -> None:
    source = numbered("en", 30)
    target = numbered("fr", 30, start=5, seed=1)
    mined = mine_bitext(source, target, encoder=NumberEncoder(), languages=("en", "fr"), threshold=1.05)

    result = push_corpus(mined.rows(source, target), "me/en-fr-mined", METADATA, facts=mined.facts)

    assert result.files == len(hub.repos[REPO].files)
    dataset = pulled_rows(hub, tmp_path / "pulled")
    assert dataset["score"][:] == mined.score.tolist()
    assert dataset["en"][:] == [source[row] for row in mined.source]
    card = card_of(hub)
    assert "NumberEncoder" in card
    assert "1.0500" in section(card, "How the pairs were made")


SCRIPT = """
import json, os, sys
from pathlib import Path
from benchmarks.loopback_hub import Hub

hub = Hub(Path("hub"))
os.environ |= {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HOME": "home"}
os.environ["HF_TOKEN"] = "hf_" + "x" * 34
from datasets import load_dataset
from hf_xlsr.cli import main

words = ["push", "mined.jsonl", "--repo=me/en-fr-mined", "--license=mit", "--sources", "Wikipedia=mit", "--yes"]
assert main(words) == 0
assert main(words) == 0
dataset = load_dataset("me/en-fr-mined", split="train")
print(json.dumps([list(dataset.features), dataset.to_list()]))
"""


@pytest.mark.slow
def test_push_and_load_over_http() -> None:
    """All requests of huggingface_hub and `datasets`, to a Hub on this machine."""
    pairs = mine(output="mined.jsonl")
    script = Path("script.py")
    script.write_text(SCRIPT, "utf-8")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(script)], check=False, capture_output=True, text=True, env=environment, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]

    features, rows = json.loads(run.stdout.splitlines()[-1])
    assert features == ["en", "fr", "score", "source_line", "target_line"]
    mined = [json.loads(line) for line in pairs.read_text("utf-8").splitlines()]
    assert [(row["en"], row["fr"], row["score"]) for row in rows] == [
        (row["source"], row["target"], row["score"]) for row in mined
    ]


def test_python_of_the_page(hub: Hub, tiny_export: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "publish.md").read_text("utf-8").split("## Mined pairs")[1].split("\n## ")[0]
    (code,) = [block.split("\n```")[0] for block in page.split("```python\n")[1:]]
    exec(code.replace('"MODEL"', repr(tiny_export)), {})
    assert Path("en-de/README.md").is_file()
    assert "datasets/me/en-de-mined" in hub.repos
