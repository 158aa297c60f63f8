"""What does not fit is refused before it is allocated, and freed memory is kept while a training runs."""

from __future__ import annotations

import platform
import resource
from pathlib import Path

import pytest
import torch

from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.stock import encoder_from_pretrained
from hf_xlsr.modeling.memory_queue import MemoryQueue
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.memory import free_memory, freed_memory_kept


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_freed_memory_is_kept_for_the_next_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    anew = pages_of_a_large_tensor()
    with freed_memory_kept():
        # Room for an aligned block is found after a few blocks: each needs a little more than the last one left.
        assert min(pages_of_a_large_tensor() for _ in range(8)) < anew / 4

    assert pages_of_a_large_tensor() > anew / 4


def pages_of_a_large_tensor() -> int:
    """Pages that the system maps for a tensor of 128 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 25)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
