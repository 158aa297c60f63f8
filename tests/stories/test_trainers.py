"""Training from Python on own data: files, streams, resume after SIGKILL, and bad input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, IterableDataset, load_dataset
from sentence_transformers import SentenceTransformer
from story_helpers import Script, assert_equal, killed_and_resumed, weights, write_files

from hf_xlsr import DualMomentumModel, DualMomentumTrainer, DualMomentumTrainingArguments, XlsrError
from hf_xlsr.trainers.checkpoints import last_whole_checkpoint

SCRIPT = """
from datasets import load_dataset
from hf_xlsr import DualMomentumModel, DualMomentumTrainer, DualMomentumTrainingArguments

model = DualMomentumModel.from_encoders({"en": "encoders/en", "zh": "encoders/zh"}, queue_size=64, momentum=0.9)
trainer = DualMomentumTrainer(
    model=model,
    args=DualMomentumTrainingArguments(
        output_dir="out", max_steps=60, per_device_train_batch_size=16, learning_rate=1e-2, save_steps=10,
        eval_strategy="steps", eval_steps=20, report_to="none", use_cpu=True,
    ),
    train_dataset=load_dataset("csv", data_files="pairs.tsv", sep="\\t", split="train"),
    eval_dataset=load_dataset("csv", data_files="dev.tsv", sep="\\t", split="train"),
)
trainer.train()
print("accuracy", trainer.evaluate()["eval_accuracy"])
trainer.save_sentence_transformer("out/model")
"""
FROM_STREAM = ('"pairs.tsv", sep="\\t", split="train"', '"pairs.tsv", sep="\\t", split="train", streaming=True')
WORKER = ("use_cpu=True", "use_cpu=True, dataloader_num_workers=1")
RESUME = ("trainer.train()", "trainer.train(resume_from_checkpoint=True)")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    write_files(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True], ids=["files", "stream"])
def test_momentum_contrast_survives_a_kill(streamed: bool, tmp_path: Path) -> None:
    script = SCRIPT.replace(*FROM_STREAM).replace(*WORKER) if streamed else SCRIPT
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        write_files(folder)

    output = Script(script, whole).finish()
    killed_and_resumed(script, killed, RESUME)

    accuracy = output.rsplit("accuracy ", 1)[1].split()[0]
    assert 0 <= float(accuracy) <= 1
    assert_equal(weights(whole), weights(killed))

    model = SentenceTransformer(str(killed / "out" / "model"))
    assert model.encode(["one red bird"], task="en").shape == (1, 16)
    assert model.encode(["un"], task="zh").shape == (1, 16)


def trained(folder: Path, out: Path, data: Any, resume: bool = False, **options: Any) -> DualMomentumTrainer:
    encoders = {language: str(folder / "encoders" / language) for language in ("en", "zh")}
    model = DualMomentumModel.from_encoders(encoders, queue_size=64)
    args = DualMomentumTrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=16,
        report_to="none",
        use_cpu=True,
        **options,
    )
    trainer = DualMomentumTrainer(model=model, args=args, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


NAMES = {"en": "source", "zh": "target"}
BAD: list[tuple[Callable[[Dataset], Any], str]] = [
    (lambda rows: rows.select([]), "train_dataset"),
    (lambda rows: rows.remove_columns("zh"), "expected"),
    (lambda rows: rows.rename_columns(NAMES).add_column("source_lang", ["de"] * len(rows)), "de"),
    (lambda rows: "pairs.tsv", "train_dataset"),
]


@pytest.mark.parametrize(("change", "key"), BAD)
def test_bad_data(change: Callable[[Dataset], Any], key: str, encoders: Path, tmp_path: Path) -> None:
    rows = load_dataset("csv", data_files=str(encoders / "pairs.tsv"), sep="\t", split="train")
    with pytest.raises(XlsrError, match=key):
        trained(encoders, tmp_path, change(rows))


@pytest.mark.slow
def test_stream_that_fails_midway_leaves_checkpoints(encoders: Path, tmp_path: Path) -> None:
    rows = load_dataset("csv", data_files=str(encoders / "pairs.tsv"), sep="\t", split="train").to_list()
    broken = tmp_path / "broken"

    def read() -> Iterator[dict[str, str]]:
        for turn in range(10):  # a thousand rows are read together
            if turn == 6 and broken.exists():
                raise OSError("the disk was removed")
            yield from rows

    def train(**resume: Any) -> DualMomentumTrainer:
        data = IterableDataset.from_generator(read)
        return trained(encoders, tmp_path, data, max_steps=80, save_steps=20, shuffle_buffer_size=64, **resume)

    broken.touch()

    with pytest.raises(OSError, match="disk was removed"):
        train()
    assert last_whole_checkpoint(tmp_path)

    broken.unlink()
    assert train(resume=True).state.global_step == 80
