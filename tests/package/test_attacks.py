"""Files that attack: each does no harm and ends in an error, or is read without what it tries."""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cli_helpers import failing
from safetensors.torch import save_file

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.runs.publish import write_encoder_adapters
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.front_matter import front_matter

ROOT = Path(__file__).resolve().parents[2]


def loading_calls(tree: ast.AST) -> list[str]:
    """Calls that let transformers or sentence-transformers ask whether to run code of a folder."""
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        from_files = name.startswith("Auto") and name.endswith(".from_pretrained")
        from_files |= name == "SentenceTransformer" and bool(call.args)
        if from_files and "trust_remote_code" not in {keyword.arg for keyword in call.keywords}:
            found.append(f"{name} in line {call.lineno}")
    return found


@pytest.mark.parametrize("package", ["hf_xlsr", "modeling", "trainers"])
def test_no_loading_asks_whether_to_run_code(package: str) -> None:
    files = (ROOT / package).rglob("*.py")
    assert not {str(file): calls for file in files if (calls := loading_calls(ast.parse(file.read_text("utf-8"))))}


@pytest.mark.parametrize(
    "words",
    [
        "evaluate {folder} --protocol tatoeba --data pairs.tsv",
        "export {folder} --output out",
        "train finetune --encoder {folder} --train pairs.tsv --languages en,fr --output_dir run",
        "train start_hictl --encoder {folder} --train pairs.tsv --languages en,fr --output_dir run",
    ],
)
def test_folder_with_code(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "attack"
    folder.mkdir()
    classes = {f"Auto{kind}": f"evil.Evil{kind}" for kind in ("Config", "Model", "Tokenizer")}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": classes}))
    tokenizer = {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'harm')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("source\ttarget\n" + "".join(f"one {n}\tun {n}\n" for n in range(99)), "utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    assert failing(capsys, *words.format(folder=folder).split())
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["/tmp/x", "..", "a/../../b"])
def test_adapters_for_a_path(name: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    key = f"base_model.model.encoders.{name.replace('/tmp', str(tmp_path))}.layer.lora_A.weight"
    save_file({key: torch.ones(1)}, tmp_path / "adapter_model.safetensors")
    before = set(tmp_path.rglob("*"))
    assert write_encoder_adapters(tmp_path, tmp_path / "out") == {} and set(tmp_path.rglob("*")) == before


def test_card_with_an_alias_bomb() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40))]
    assert front_matter("---\n" + "\n".join(lines) + "\n---\n") == {}
    assert front_matter("---\n" + "[" * 9000 + "\n---\n") == {} == front_matter("---\nx: " + "y" * 100_000 + "\n---\n")


def deep_tmx(file: Path) -> None:
    file.write_text("<tmx>" + "<x>" * 100_000)


def wide_tmx(file: Path) -> None:
    unit = "<tuv lang='en'><seg>a</seg></tuv><tuv lang='fr'><seg>b</seg></tuv>" * 5000
    file.write_text(f"<tmx><body><tu>{unit}</tu></body></tmx>")


def large_po(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate((1 << 26) + 1)


def expanding_parquet(file: Path) -> None:
    text = pa.array(["a" * 300_000_000])
    pq.write_table(pa.table({"source": text, "target": ["b"]}), file, compression="zstd", use_dictionary=False)
    assert file.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("write", "suffix"), [(deep_tmx, "tmx"), (wide_tmx, "tmx"), (large_po, "po"), (expanding_parquet, "parquet")]
)
def test_files_that_expand(write: Callable[[Path], None], suffix: str, tmp_path: Path) -> None:
    file, quarantine = tmp_path / f"attack.{suffix}", Quarantine()
    write(file)
    rows = read_rows(str(file), required=("source", "target"), languages=("en", "fr"), quarantine=quarantine)
    if write is wide_tmx:
        assert not list(rows) and "over-long unit" in str(quarantine.report())
    else:
        with pytest.raises(XlsrError, match=f"attack.{suffix}"):
            list(rows)
