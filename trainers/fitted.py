"""A classifier on the sentence embeddings of a frozen encoder, fitted on few labelled rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import get_device_name
from sklearn.linear_model import LogisticRegression
from transformers import TextClassificationPipeline

from hf_xlsr.data.conversion import labelled_readers, warn_of_skipped
from hf_xlsr.data.encoding import row_columns
from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.data.raw_rows import is_numbered
from hf_xlsr.data.tokenization import prompting_tokenizer
from hf_xlsr.encoders.assembly import MessageTokenizer, SentenceEncoder, default_pooling, text_tokenizer
from hf_xlsr.encoders.encoding import BATCH_SIZE, embed
from hf_xlsr.encoders.heads import head_config
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.static import tokenizer_of
from hf_xlsr.evaluation.classifiers import cross_validated
from hf_xlsr.evaluation.pairs import pair_features
from hf_xlsr.evaluation.rows import LabelledTexts
from hf_xlsr.modeling.base import config_of_encoder
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.utils.errors import XlsrError

READ_ROWS = 1000  # rows read together


def fit_classifier(
    encoder: Any,
    rows: Any,
    *,
    prompt: str | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 1,
    show_progress_bar: bool = False,
) -> TextClassificationPipeline:
    """Fits logistic regression on sentence embeddings, and returns it with the encoder as a pipeline of transformers.

    The encoder stays as it is and embeds each text once, with its own pooling, normalisation, length and default prompt.
    The features of a pair are `[u, v, |u - v|, u * v]`. The regularisation is chosen by `cross_validated`.

    The model is a `HictlForSequenceClassification`. `save_pretrained` of the result writes a folder that
    `pipeline("text-classification", folder, truncation=True)` and `FineTuneTrainer` load.

    Args:
        encoder: Anything that `hf_xlsr.encoders.reading.read_encoder` reads: a folder, Hub id or `SentenceTransformer`.
        rows: A `Dataset` or a list of dicts with the columns `text`, or `premise` and `hypothesis` (`text` and
            `text_pair`, `sentence1` and `sentence2`), and `label`: a `ClassLabel`, a text or an integer.
        prompt: Put before every text instead of the encoder's own default prompt.
        batch_size: Texts encoded at a time.
        seed: Of the folds of the cross-validation.
        show_progress_bar: Show one while encoding.

    Raises:
        XlsrError: Labels are not those of two or more classes with a row each; the encoder has routes, reads texts as
            messages of a chat, or has a tokenizer that cannot store the prompt.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> words = ["good film", "fine book", "bad film", "poor book"]
        >>> tokenizer = train_tokenizer(words * 20, vocab_size=40, algorithm="bpe", max_length=16, frame=True)
        >>> size = BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> BertModel(size).save_pretrained("encoder")
        >>> tokenizer.save_pretrained("encoder")[:0]
        ()
        >>> rows = [{"text": text, "label": "good" if text in words[:2] else "bad"} for text in words]
        >>> classify = fit_classifier("encoder", rows)
        >>> sorted(output["label"] for output in classify("good film", top_k=None))
        ['bad', 'good']
    """
    texts, names = _read_rows(rows)
    classifier, stock = _classifier_of(encoder, prompt, len(texts.sides), names)

    embeddings = embed(
        stock,
        chain(*texts.sides),
        normalize=False,
        batch_size=batch_size,
        show_progress_bar=show_progress_bar,
    )
    sides = embeddings.astype(np.float64).reshape(len(texts.sides), len(texts.labels), -1)
    features = sides[0]
    if len(sides) == 2:
        features = pair_features(*sides)

    _set_output_layer(classifier.classifier, cross_validated(features, texts.labels, seed=seed))
    return TextClassificationPipeline(
        model=classifier.eval(), tokenizer=classifier.given_tokenizer, device=stock.device, truncation=True
    )


def _read_rows(rows: Any) -> tuple[LabelledTexts, list[str]]:
    """Texts with the numbers of their classes, and the names of the classes."""
    readers, names = labelled_readers(rows, "rows")
    columns = {reader.kind.texts for _, _, reader in readers}
    if len(columns) > 1:
        raise XlsrError("`rows` must be all texts or all pairs of texts, got both.")

    labelled = []
    for _, dataset, reader in readers:
        for row in reader.stream(dataset.iter(batch_size=READ_ROWS)):
            if all(row[name].strip() for name in reader.kind.texts):
                labelled.append(row)
    warn_of_skipped(len(labelled), [dataset for _, dataset, _ in readers])

    labels = np.array([row["label"] for row in labelled], dtype=np.int64)
    if len(names) < 2:
        raise XlsrError(f"`label` must have two or more classes, got {len(names)}.")
    for number, name in enumerate(names):
        if number not in labels:
            raise XlsrError(f"`label` must have a row of each class, got none of '{name}'.")

    sides = row_columns(labelled, columns.pop())
    return LabelledTexts(list(sides.values()), labels), names


def _classifier_of(
    encoder: Any, prompt: str | None, num_sides: int, names: list[str]
) -> tuple[Any, SentenceTransformer]:
    """A `HictlForSequenceClassification` with a new output layer, and its encoder as a `SentenceTransformer`."""
    read = read_encoder(encoder, "encoder")
    part = read.single("encoder")
    if isinstance(text_tokenizer(part), MessageTokenizer):
        raise XlsrError("`encoder` must read plain texts, got one that reads messages of a chat.")
    width = part.encoder.config.get_text_config().hidden_size
    head = part.head or [Pooling(width, default_pooling(part.encoder.config))]

    prompts = PromptTable.of(read.settings).given(prompt)
    settings = replace(read.settings, prompts=dict(prompts.texts), default_prompt_name=prompts.default)
    stock = SentenceEncoder({"": replace(part, head=head)}, settings).assemble(get_device_name())

    tokenizer = tokenizer_of(stock[0])
    is_special = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    features: dict[str, Any] = stock.preprocess(["a"], prompt=prompts.text())
    options: dict[str, Any] = {
        "head": head_config(head),
        "transformer_options": part.options,
        "encoder_settings": settings.to_dict(),
        "classifier_input": "embedding" if num_sides == 1 else "embedding_pair",
        "prompt_length": features.get("prompt_length", 0),
        "keep_end": any(is_special[-1:]),
        "num_labels": len(names),
        "problem_type": "single_label_classification",
    }
    if not is_numbered(names):
        options["id2label"] = dict(enumerate(names))
        options["label2id"] = {name: number for number, name in enumerate(names)}

    config = HictlConfig(**config_of_encoder(part.encoder), **options)
    classifier = HictlForSequenceClassification(config, part.encoder, head)
    classifier.given_tokenizer = prompting_tokenizer(tokenizer, prompts.text(), pairs=num_sides == 2)
    return classifier, stock


@torch.no_grad()
def _set_output_layer(layer: torch.nn.Linear, fitted: LogisticRegression) -> None:
    """Gives an output layer the weights of a fitted classifier, so that its softmax has the same probabilities."""
    weight = fitted.coef_
    bias = fitted.intercept_
    if len(weight) == 1:  # of two classes, the logit of the second
        weight = np.concatenate([-weight / 2, weight / 2])
        bias = np.concatenate([-bias / 2, bias / 2])
    layer.weight.copy_(torch.from_numpy(weight))
    layer.bias.copy_(torch.from_numpy(bias))
