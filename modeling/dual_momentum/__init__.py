"""Dual momentum contrast (MoCo-BERT)."""

from __future__ import annotations

from .configuration_dual_momentum import DualMomentumConfig
from .memory_queue import MemoryQueue
from .modeling_dual_momentum import DualMomentumModel, DualMomentumOutput

__all__ = ["DualMomentumConfig", "DualMomentumModel", "DualMomentumOutput", "MemoryQueue"]
