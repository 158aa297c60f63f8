"""From a trained model to folders that other tools load. Names are imported on first use."""

from __future__ import annotations

from hf_xlsr.utils.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "corpus": ["push_corpus", "save_corpus"],
        "corpus_card": ["CorpusMetadata"],
        "model_card": ["CardMetadata"],
        "pruning": ["prune"],
        "routed": ["debias_sentence_transformer"],
        "sentence_transformer": ["save_export", "to_sentence_transformer"],
    },
)
