"""Everything that is written takes its name when it is whole: no call writes to a final name by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("hf_xlsr", "modeling", "trainers")
LINKS = {ROOT / "hf_xlsr" / name for name in ("modeling", "trainers", "model_cards")}

WHOLE = ("atomic_write", "atomic_folder", "TemporaryDirectory", "NamedTemporaryFile", "_writing")
WRITERS = ("write_bytes", "savefig", "tofile", "dump", "savez", "savez_compressed", "ParquetWriter")
WRITERS += ("save_pretrained", "save_file", "save_model", "save_to_json", "save_to_disk", "to_parquet", "write_index")
WRITERS += (
    "copyfile",
    "copy2",
    "copytree",
    "move",
    "copyfileobj",
    "hardlink_to",
    "symlink_to",
    "rename",
    "quantize_dynamic",
)

# Functions that write to a final name by themselves, and why nothing is lost.
REASONS = {
    "cli/encode.py:fit": "calls Debias.save",
    "cli/export.py:_copy_files": "into a folder of atomic_folder",
    "cli/export.py:_write_card": "into a folder of atomic_folder",
    "data/cleaning/tasks.py:write_verdicts": "the file of a task",
    "data/conversion.py:tokenise_rows": "into a folder of `cached`",
    "data/formats/quarantine.py:reject": "line by line into a folder of `cached` or of a stage",
    "data/preparation.py:_make_rows": "into a folder of `cached`",
    "data/preparation.py:write_judged": "the file of a task",
    "data/conversion.py:write_tokens": "the file of a task",
    "mining/negative_counts.py:write": "the file of a task",
    "data/tokenization.py:make": "into a folder of `cached`",
    "export/corpus_files.py:write_shards": "into a folder of atomic_folder, or a temporary one",
    "export/onnx_files.py:write_graph": "into a folder of atomic_folder",
    "export/onnx_files.py:_quantize": "into a folder of atomic_folder",
    "export/openvino_files.py:write_int8": "into a folder of atomic_folder",
    "export/sentence_transformer.py:write_export": "into a folder of atomic_folder",
    "mining/outputs.py:_write_parquet": "the file of atomic_write",
    "mining/text_tasks.py:__call__": "the file of a task",
    "mining/texts.py:read_texts": "into a stage, which is finished afterwards",
    "mining/work_folder.py:write_arrays": "the file of a task, or of atomic_write",
    "runs/folder.py:claim": "a whole folder",
    "runs/methods/fine_tuning.py:make": "into a folder of `cached`",
    "runs/methods/fine_tuning.py:evaluate_and_export": "calls FineTuning.save",
    "runs/train.py:_save_final": "the state of the training and the seal are written last",
    "trainers/base.py:save_tokenizers": "into a checkpoint, which is sealed afterwards",
    "trainers/dual_momentum.py:_save": "into a checkpoint, which is sealed afterwards",
    "trainers/dual_momentum.py:save_tokenizers": "into a checkpoint, which is sealed afterwards",
    "trainers/row_selection.py:save_row_ids": "into a checkpoint, which is sealed afterwards",
    "trainers/hub.py:export_trainer": "into a temporary folder",
    "utils/files.py:atomic_folder": "a whole folder",
    "utils/hashing.py:cached": "a whole folder",
}


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def writes(node: ast.Call) -> bool:
    name = called(node)
    is_method = isinstance(node.func, ast.Attribute)
    modes = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    if name in ("open", "OSFile", "open_memmap"):
        return any(isinstance(mode, str) and mode[:1] in tuple("wax") or mode == "r+b" for mode in modes)
    if name == "save":  # of numpy, sentence-transformers, ONNX and torch
        return is_method
    return name in WRITERS or (name == "write_text" and is_method)


def calls(tree: ast.AST, function: str = "", whole: bool = False) -> Iterator[tuple[str, int]]:
    """The function and the line of each call that writes outside of what is renamed at the end."""
    for node in ast.iter_child_nodes(tree):
        name = function
        is_whole = whole
        if isinstance(node, ast.FunctionDef):
            name = node.name
        elif isinstance(node, ast.With):
            managers = [item.context_expr for item in node.items]
            is_whole |= any(called(manager) in WHOLE for manager in managers if isinstance(manager, ast.Call))
        elif isinstance(node, ast.Call) and writes(node) and not whole:
            yield name, node.lineno
        yield from calls(node, name, is_whole)


def test_each_writer_is_atomic_or_has_a_reason() -> None:
    found: dict[str, int] = {}
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if LINKS & {*file.parents}:
                continue
            place = file.relative_to(ROOT).as_posix().removeprefix("hf_xlsr/")
            for function, line in calls(ast.parse(file.read_text("utf-8"))):
                found[f"{place}:{function}"] = line

    unknown = {name: line for name, line in found.items() if name not in REASONS}
    assert not unknown, "write with atomic_write or atomic_folder (hf_xlsr/utils/files.py)"
    assert set(found) == set(REASONS)
