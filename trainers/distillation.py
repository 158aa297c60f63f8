"""Training a student."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from hf_xlsr.data.streaming import StreamedRows
from hf_xlsr.encoders.teacher import Teacher
from hf_xlsr.modeling.distillation import DistillationModel
from hf_xlsr.trainers.lightweight import LightweightTrainer
from hf_xlsr.trainers.pretrained import model_and_tokenizer

STREAMED_TEXTS = 20_000
"""First texts of a stream, whose mean embedding is the centre."""


class DistillationTrainer(LightweightTrainer):
    """`LightweightTrainer` for `DistillationModel`: a teacher embeds the sources.

    The embeddings of stored data are computed before the first step, and kept on disk for later runs; those of streams
    in each step. `docs/distill.md` has a complete script.

    Args:
        model: The model; or, with default settings, an encoder: a folder, Hub id or `SentenceTransformer`.
        args: `LightweightTrainingArguments`.
        teacher: A `Teacher`, or an encoder for one with default settings: a folder, Hub id or `SentenceTransformer`.
        **kwargs: As for `LightweightTrainer`.
    """

    model_class = DistillationModel

    def __init__(self, model: Any, args: Any, *, teacher: Any, **kwargs: Any) -> None:
        self.teacher = teacher if isinstance(teacher, Teacher) else Teacher(teacher)
        super().__init__(model, args, **kwargs)
        with args.main_process_first(desc="teacher"):
            self.teacher.prepare(_sources(self.train_dataset))

    def model_and_tokenizer(self, model: Any, tokenizer: Any, args: Any) -> tuple[Any, Any]:
        return model_and_tokenizer(self.model_class, model, tokenizer, seed=args.seed, teacher_dim=self.teacher.dim)

    def convert(self, data: Any, name: str) -> Any:
        return self.converter.taught_pairs(data, name)

    def convert_eval(self, data: Any) -> Any:
        return self.converter.taught_pairs(data, "eval_dataset")

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Adds the teacher's embeddings of the sources."""
        inputs = {**inputs}
        inputs["teacher_embeds"] = self.teacher(inputs.pop("source_texts")).to(self.args.device)
        return super().compute_loss(model, inputs, *args, **kwargs)


def _sources(data: Any) -> Iterator[str]:
    """The texts of the sources; of a stream, enough for the centre."""
    if isinstance(data, StreamedRows):
        rows = chain.from_iterable(stream.read(stream.data.iter(100)) for stream in data.streams)
        yield from (row["source"] for row in islice(rows, STREAMED_TEXTS))
    elif data is not None:
        for batch in data.rows.select_columns(["source"]).iter(batch_size=1000):
            yield from batch["source"]
