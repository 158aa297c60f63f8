"""Each promise of SECURITY.md is kept in one place; calls that go around it are found in the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADER = "hf_xlsr/utils/auto_classes.py"
YAML = "hf_xlsr/utils/yaml.py"
DATASETS = "hf_xlsr/data/formats/dataset_folders.py"
MODULES = "hf_xlsr/encoders/assembly.py"

# The last part of a call's name -> the files that may have it, each with a check beside it.
ONLY_IN = {
    "from_pretrained": {LOADER},
    "from_config": {LOADER},
    "get_class_from_dynamic_module": set(),
    "_load_with_module_classes": {MODULES},
    "load_dataset_builder": {DATASETS},
    "load_from_disk": {DATASETS},
    "ParquetFile": {"hf_xlsr/data/formats/parquet_child.py"},
    "read_parquet": set(),
    "read_table": set(),
    # Packaged readers of listed files; repositories that our own catalogue names.
    "load_dataset": {DATASETS, "hf_xlsr/data/corpora/loading.py"},
    # Names of our own modules; classes of torch.
    "import_module": {
        "hf_xlsr/cli/app.py",
        "hf_xlsr/encoders/heads.py",
        "hf_xlsr/evaluation/protocols/__init__.py",
        "hf_xlsr/runs/methods/__init__.py",
        LOADER,
        "hf_xlsr/utils/lazy.py",
        "hf_xlsr/utils/extras.py",  # two libraries, by name
    },
    "eval": set(),
    "exec": set(),
    "import_from_string": set(),
    "get_model": set(),
    "read_pickle": set(),
    "read_csv": set(),
}
# Whole names of calls.
ONLY_BY_NAME = {
    "torch.load": set(),
    "pickle.load": set(),
    "pickle.loads": set(),
    "evaluate.load": set(),
    "yaml.load": {YAML},
    "yaml.safe_load": set(),
    "yaml.safe_load_all": set(),
    "yaml.load_all": set(),
    "yaml.full_load": set(),
    "yaml.compose": set(),
    "DatasetCard.load": set(),
    "ModelCard.load": set(),
    "RepoCard.load": set(),
    "metadata_load": set(),
}
METHODS = {"eval"}  # of a model: `eval` is a function only


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in ("hf_xlsr", "modeling", "trainers"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if not name.startswith(("hf_xlsr/modeling/", "hf_xlsr/trainers/")):  # links to the folders beside
                yield name, ast.parse(file.read_text("utf-8"))


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def strays(tree: ast.AST, file: str) -> list[str]:
    """Calls of a file that go around the place of a promise."""
    found = []
    for node, name in calls(tree):
        last = name.rpartition(".")[2]
        allowed = ONLY_BY_NAME.get(name)
        if allowed is None and not (last in METHODS and last != name):
            allowed = ONLY_IN.get(last)
        if name.startswith("super()"):
            continue
        loads_path = last in ("SentenceTransformer", "CrossEncoder", "Transformer") and bool(node.args)
        if loads_path or (allowed is not None and file not in allowed):
            found.append(f"{file}:{node.lineno}: {name}")
        for keyword in node.keywords:
            if keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) != "False":
                found.append(f"{file}:{node.lineno}: trust_remote_code")
    return found


def test_no_call_goes_around_the_place_of_a_promise():
    assert [stray for file, tree in sources() for stray in strays(tree, file)] == []


@pytest.mark.parametrize(
    "line",
    [
        "AutoModel.from_pretrained(path, trust_remote_code=False)",
        "model_class.from_pretrained(path)",
        "auto.from_config(config)",
        "SentenceTransformer(path)",
        "torch.load(file)",
        "yaml.safe_load(text)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "datasets.load_dataset(path)",
        "importlib.import_module(name)",
        "load(trust_remote_code=flag)",
        "eval(text)",
        "ModelCard.load(path)",
    ],
)
def test_a_new_call_site_is_found(line):
    assert strays(ast.parse(line), "hf_xlsr/cli/train.py") != []


def test_the_loader_passes_no_trust():
    tree = ast.parse((ROOT / LOADER).read_text("utf-8"))
    for node, name in calls(tree):
        if name.endswith(("from_pretrained", "from_config")):
            assert "trust_remote_code=False" in ast.unparse(node)


# --- Names that become paths ---------------------------------------------------------------------------------------

# What is joined to a folder and is no constant. Each was read: it is a number, a hash or a name of our own, or it has
# passed `path_name` or `inside`. A new one does the same, and is added here.
JOINED = {
    "hf_xlsr/cli/encode.py": {"language"},
    "hf_xlsr/cli/export.py": {"folder.name + '.partial'", "name", "file.name", "route"},
    "hf_xlsr/cli/report.py": {"f'{side}.text'"},
    "hf_xlsr/data/cleaning/tasks.py": {"f'{content_address(batch)}.npz'"},  # a hash
    "hf_xlsr/data/conversion.py": {"f'{number:06d}.arrow'"},
    DATASETS: {"path_name(split, 'split')", "inside(folder, str(described.get('data_dir') or ''))"},
    "hf_xlsr/mining/negatives.py": {"f'{start:010d}.arrow'", "name"},
    "hf_xlsr/data/preparation.py": {"f'{number:06d}.judged.arrow'"},
    "hf_xlsr/encoders/cache.py": {
        "hashlib.sha256(facts.encode()).hexdigest()[:32]",
        "f'{name}{ending}'",
        *("f'{name}{KEYS}'", "f'{name}{VECTORS}'"),
    },
    "hf_xlsr/encoders/folder_modules.py": {"subfolder", "cls.config_file_name"},
    "hf_xlsr/encoders/graphs.py": {
        *("first_folder", "folder", "route", "export_part.folder"),
        *("graph_format.folder", "graph_format.file"),
    },
    "hf_xlsr/encoders/reading.py": {"inside(path, read_json(modules_file)[0]['path'])", "name"},
    "hf_xlsr/evaluation/mteb/submission.py": {"f'{_identifier(name)}.py'", "f'{task}.json'"},
    "hf_xlsr/evaluation/plots/results.py": {"f'{stem}.png'", "f'{stem}-{number}.png'"},
    "hf_xlsr/evaluation/suites/suite.py": {
        "f'{file_name(name)}.json'",
        "f'table{ending}'",
        "file_name(label)",
        "f'{number}.json'",
    },
    "hf_xlsr/export/corpus.py": {"name"},
    "hf_xlsr/export/corpus_files.py": {"f'part-{len(parts)}.parquet'", "name"},
    "hf_xlsr/export/hub.py": {"name"},
    "hf_xlsr/export/old_names.py": {"name"},
    "hf_xlsr/export/published_files.py": {"part", "name"},
    "hf_xlsr/encoders/loading.py": {"graph.folder"},
    "hf_xlsr/export/onnx_files.py": {"route", "graph_format.folder", "graph_format.file"},
    "hf_xlsr/mining/filtering/features.py": {"len(runs[0] | runs[1])"},  # a quotient
    "hf_xlsr/mining/pipeline.py": {"f'{name}.npy'"},
    "hf_xlsr/mining/search/cells.py": {"f'{name}.npy'", "f'{sorted_name}.npy'"},
    "hf_xlsr/mining/search/neighbours.py": {"f'neighbours-{digest[:16]}'"},
    "hf_xlsr/mining/search/sorted_pairs.py": {"f'run-{number}.npy'"},
    "hf_xlsr/mining/search/spans.py": {"f'{name}-{start}-{stop}.npz'"},
    "hf_xlsr/mining/stages.py": {"name", "f'{start}.npz'"},
    "hf_xlsr/mining/text_tasks.py": {"f'{data_hash(chunk)}.npy'", "work.address"},  # hashes
    "hf_xlsr/mining/work_folder.py": {"f'{name}.npy'", "name"},
    "hf_xlsr/runs/folder.py": {"self.recipe.name"},
    "hf_xlsr/runs/publish.py": {"name"},
    "hf_xlsr/runs/recipe.py": {"run.name"},
    "hf_xlsr/runs/train.py": {"f'{name}.jsonl'"},
    "hf_xlsr/sentence_transformers/dual_momentum.py": {"f'checkpoint-{state.global_step}'"},
    "hf_xlsr/sentence_transformers/evaluators.py": {"self.csv_file"},
    "hf_xlsr/utils/files.py": {"path.name", "Path(path).name"},
    "hf_xlsr/utils/hashing.py": {
        "str(broken_seal(folder) or SEAL)",
        "address",
        "address_of(facts)",
        "f'{address}.partial'",
    },
    "hf_xlsr/utils/seals.py": {"name"},
    "hf_xlsr/utils/tasks.py": {"address"},  # a hash
    "hf_xlsr/utils/model_sizes.py": {"hub_options.get('subfolder', '')"},
    "trainers/base.py": {"f'{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}'"},
    "trainers/checkpoints.py": {"name", "torn"},
    "trainers/dual_momentum.py": {"config.encoder_of(language)"},
}
FOLDERS = ("folder", "home", "path", "Path", "run", "output", "checkpoint", "root", "place", "scratch", "cache", "dir")


def joined_names(tree: ast.AST) -> set[str]:
    """What is joined to folders in a file, without constants."""
    parts: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            left = ast.unparse(node.left)
            if any(word in left for word in FOLDERS):
                parts.append(node.right)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("Path", "os.path.join"):
                parts += node.args[1:]
            elif name.endswith((".joinpath", ".with_name", ".with_stem")):
                parts += node.args

    names = set()
    for part in parts:
        text = ast.unparse(part)
        if not isinstance(part, ast.Constant) and not text.rpartition(".")[2].isupper():
            names.add(text)
    return names


def test_names_joined_to_folders_are_known():
    unknown = []
    for file, tree in sources():
        names = joined_names(tree) - JOINED.get(file, set())
        if not file.startswith("hf_xlsr/losses/"):  # where a slash divides
            unknown += [f"{file}: {name}" for name in names]
    assert unknown == []
