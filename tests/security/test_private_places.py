"""Outputs do not pass by predictable names or links, and what is believed later lies where only its owner writes."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from call_sites import places_of, source_files
from cli_helpers import failing

from hf_xlsr.cli import main
from hf_xlsr.encoders.cache import VectorStore
from hf_xlsr.mining.work_folder import WorkFolder
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.sentence_transformers.evaluators import TatoebaEvaluator
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_folder, atomic_write, private_folder
from hf_xlsr.utils.hashing import cached, remembered_file


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user, which nothing may change."""
    file = tmp_path / "home" / "secret"
    file.parent.mkdir()
    file.write_text("private", "utf-8")
    return file


def written(path: Path) -> str:
    with atomic_write(path) as partial:
        partial.write_text("new", "utf-8")
    return path.read_text("utf-8")


def test_link_in_place_of_an_output(secret: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.symlink_to(secret)
    assert written(output) == "new"
    assert not output.is_symlink()
    assert secret.read_text("utf-8") == "private"


def test_link_in_place_of_a_partial_file(secret: Path, tmp_path: Path) -> None:
    for ending in (".partial", ".tmp", f".{os.getpid()}"):
        (tmp_path / f"output{ending}").symlink_to(secret)
    assert written(tmp_path / "output") == "new"
    assert secret.read_text("utf-8") == "private"


def test_nobody_enters_a_partial_folder(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "output") as partial:
        (private,) = tmp_path.iterdir()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert partial.parent == private
    assert list(tmp_path.iterdir()) == [tmp_path / "output"]


def test_folder_of_the_user_beside_an_export(tiny_export: str, tmp_path: Path) -> None:
    thesis = tmp_path / "out.partial" / "thesis"
    thesis.mkdir(parents=True)
    assert main(["export", tiny_export, "--output", str(tmp_path / "out")]) == 0
    assert thesis.is_dir()


def test_folder_of_the_user_beside_a_run(tmp_path: Path) -> None:
    thesis = tmp_path / "run" / "training.partial"
    thesis.mkdir(parents=True)
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.reserve({"overwrite": False})
        folder.claim({})
    assert thesis.is_dir()
    assert folder.recipe.is_file()


@pytest.mark.parametrize("verb", ["export MODEL", "prune MODEL --texts en=texts.txt"])
def test_link_in_place_of_an_output_folder(
    verb: str, tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("one two\n", "utf-8")
    Path("home").mkdir()
    Path("out").symlink_to("home")
    words = [tiny_export if word == "MODEL" else word for word in verb.split()]
    assert "is a link" in failing(capsys, *words, "--output", "out")
    assert not list(Path("home").iterdir())


def test_link_in_place_of_a_table_of_an_evaluator(secret: Path, tmp_path: Path) -> None:
    evaluator = TatoebaEvaluator(["one"], ["un"])
    table = tmp_path / evaluator.csv_file
    table.symlink_to(secret)
    for _ in range(2):
        evaluator._append_row(tmp_path, {"epoch": 1, "accuracy": 0.5})
    assert table.read_text("utf-8").splitlines() == ["epoch,accuracy", "1,0.5", "1,0.5"]
    assert secret.read_text("utf-8") == "private"


# --- Folders that are believed ---------------------------------------------------------------------------------------


def claim(path: Path) -> None:
    with WorkFolder(path).claim("mine", {}, {}):
        pass


def fill_cache(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_XLSR_CACHE", str(path))
        cached("0" * 32, lambda folder: (folder / "rows").write_text("private", "utf-8") and None)
        remembered_file("fact")


def store_vectors(path: Path) -> None:
    VectorStore(path, {"model": "a"}).add(["text"], np.ones((1, 2), np.float32))


BELIEVED: dict[str, Callable[[Path], None]] = {
    "work folder": claim,
    "cache": fill_cache,
    "vectors": store_vectors,
}


@pytest.mark.parametrize("use", BELIEVED.values(), ids=BELIEVED)
def test_new_folder_is_private(use: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "folder"
    use(folder)
    use(folder)
    for path in (folder, *filter(Path.is_dir, folder.rglob("*"))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o1777])
@pytest.mark.parametrize("use", BELIEVED.values(), ids=BELIEVED)
def test_folder_that_others_may_write(use: Callable[[Path], None], mode: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    use(folder)
    folder.chmod(mode)
    with pytest.raises(XlsrError, match="folder.*chmod go-w"):
        use(folder)


@pytest.fixture
def another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that does not belong to the user of this process."""
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        user = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: user)
    return folder


@pytest.mark.parametrize("use", BELIEVED.values(), ids=BELIEVED)
def test_folder_of_another_user(use: Callable[[Path], None], another_user: Path) -> None:
    with pytest.raises(XlsrError, match="theirs.*another user"):
        use(another_user)


def test_link_of_another_user(tmp_path: Path) -> None:
    """It could lead to any folder of this user."""
    if os.getuid():
        pytest.skip("only root can make one")
    (tmp_path / "ours").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("ours")
    assert private_folder(tmp_path / "link")  # our own, as to a larger disk
    os.lchown(tmp_path / "link", 12345, -1)
    with pytest.raises(XlsrError, match="another user"):
        private_folder(tmp_path / "link")


def test_vectors_below_a_folder_of_another_user(tmp_path: Path) -> None:
    store = VectorStore(tmp_path / "vectors", {"model": "a"})
    store.folder.chmod(0o777)
    with pytest.raises(XlsrError, match="chmod"):
        VectorStore(tmp_path / "vectors", {"model": "a"})


# --- New call sites --------------------------------------------------------------------------------------------------

REMOVING = {
    "hf_xlsr/utils/tasks.py:resumed_folder": "a private folder that is locked",
    "hf_xlsr/cli/filter.py:_finish": "the work folder of this job",
    "hf_xlsr/utils/files.py:remove_leftovers": "folders that only this package makes",
    "hf_xlsr/cli/report.py:OutputOptions.finish": "the work folder of this job",
    "hf_xlsr/data/conversion.py:tokenise_rows": "in a folder of the cache",
    "hf_xlsr/data/preparation.py:clean_rows.make": "in a folder of the cache",
    "hf_xlsr/mining/negatives.py:remove_jobs": "work folders of this job",
    "hf_xlsr/mining/stages.py:Job._join_shards": "in a claimed work folder",
    "hf_xlsr/mining/work_folder.py:Stage.restart": "in a claimed work folder",
    "hf_xlsr/mining/work_folder.py:Stage.clear": "in a claimed work folder",
    "hf_xlsr/mining/work_folder.py:WorkFolder.claim": "in a claimed work folder",
    "hf_xlsr/utils/hashing.py:cached": "a torn folder of the cache",
    "hf_xlsr/runs/folder.py:RunFolder.claim": "a run that is replaced",
    "hf_xlsr/runs/train.py:_save_final": "in a locked run",
}


def test_folders_are_removed_in_known_places() -> None:
    assert places_of(lambda site: site.method == "rmtree") == set(REMOVING)


def test_no_temporary_name_is_predictable() -> None:
    """Only folders of the cache, which is private, resume from a known name."""
    endings = (".partial", ".tmp", ".temp", ".bak")
    known = {("hf_xlsr/utils/hashing.py", ".partial"), ("hf_xlsr/mining/texts.py", "spans.tmp")}
    names = set()
    for file in source_files():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and str(node.value).endswith(endings):
                names.add(("/".join(file.parts[-3:]), node.value))
    assert names == known


def test_believed_folders_are_private() -> None:
    """Who reads arrays back, or resumes, takes its folder from `private_folder`."""
    users = {place.partition(":")[0] for place in places_of(lambda site: site.method == "private_folder")}
    assert users == {
        "hf_xlsr/encoders/cache.py",
        "hf_xlsr/mining/work_folder.py",
        "hf_xlsr/utils/hashing.py",
        "hf_xlsr/utils/tasks.py",
    }
    temporary = places_of(lambda site: site.method in ("gettempdir", "mktemp"))
    assert temporary == {"hf_xlsr/cli/ending.py:unexpected"}  # which names the folder in a message
    assert "hf_xlsr/utils/hashing.py:cache_folder" in places_of(lambda site: site.method == "private_folder")
    named = places_of(lambda site: "HF_XLSR_CACHE" in ast.unparse(site.node))
    assert named == {"hf_xlsr/utils/hashing.py:cache_folder"}
