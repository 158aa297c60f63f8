"""What does not fit is refused before it is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.stock import encoder_from_pretrained
from hf_xlsr.modeling.memory_queue import MemoryQueue
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.memory import free_memory


def test_free_memory_is_a_part_of_the_machine() -> None:
    assert 0 < free_memory() < 1 << 50


def test_queue_beyond_the_memory() -> None:
    with pytest.raises(
        XlsrError, match=r"`queue_size` 1,000,000,000,000 needs about 4000000.0 GB of memory, but .* GB are"
    ):
        MemoryQueue(10**12, 1000)


def test_model_beyond_the_memory(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(1 << 43)  # takes no blocks of the disk
    with pytest.raises(XlsrError, match=f"'{tmp_path}' needs about 8796.1 GB of memory"):
        load_encoder(str(tmp_path))
    with pytest.raises(XlsrError, match=f"'{tmp_path}' needs about 8796.1 GB of memory"):
        encoder_from_pretrained(str(tmp_path))
