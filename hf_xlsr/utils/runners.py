"""What runs tasks, by the value of an option."""

from __future__ import annotations

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.ray_tasks import RayRunner
from hf_xlsr.utils.tasks import InProcess, LocalPool, Runner

Processes = int | str | None
"""Processes of this machine, None for 1; or `ray`, `ray:auto` or `ray:HOST:PORT`, see `RayRunner`."""
RAY = "ray"


def runner_of(processes: Processes, num_gpus: float = 0) -> Runner:
    """The runner for a number of processes of this machine, or for a Ray cluster, see `Processes`.

    `num_gpus` are those of each task on the cluster.
    """
    if isinstance(processes, str):
        engine, _, address = processes.partition(":")
        if engine != RAY:
            raise XlsrError(f"num_proc must be a number, '{RAY}' or '{RAY}:ADDRESS', got '{processes}'.")
        return RayRunner(address or None, num_gpus=num_gpus)
    return LocalPool(processes) if processes and processes > 1 else InProcess()
