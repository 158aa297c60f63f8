"""Loading with the Auto classes of transformers, without code from the folder."""

from __future__ import annotations

from typing import Any


def load_auto(auto_class: Any, path: Any, **options: Any) -> Any:
    """`auto_class.from_pretrained(path)` that never runs code of the folder or repository.

    By default transformers asks on standard input whether to run it.

    Args:
        auto_class: `AutoConfig`, `AutoModel`, `AutoTokenizer`, ...
        path: Folder or Hub id.
        **options: For `from_pretrained`.

    Raises:
        ValueError: the folder needs code of its own.
    """
    return auto_class.from_pretrained(path, trust_remote_code=False, **options)
