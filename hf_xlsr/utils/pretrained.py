"""Loading with the Auto classes of transformers, without code from the folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def load_auto(auto_class: Any, path: Any, **options: Any) -> Any:
    """`auto_class.from_pretrained(path)` that never runs code of the folder or repository.

    By default transformers asks on standard input whether to run it.
    """
    return auto_class.from_pretrained(path, trust_remote_code=False, **options)


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hides transformers' report of weights without use or without a value, for callers that check them."""
    from transformers import logging

    before = logging.get_verbosity()
    logging.set_verbosity(max(before, logging.ERROR))
    try:
        yield
    finally:
        logging.set_verbosity(before)
