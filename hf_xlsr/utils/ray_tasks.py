"""Tasks on the workers of a Ray cluster, all of which see the folder that the tasks write to."""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.tasks import TASKS_PER_PROCESS, Task, Work, complete, task_bar

RETRIES = 5
"""How often a task runs again after its worker or node was lost."""
CONNECTING = 10  # seconds
RUNTIME = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayRunner:
    """Runs tasks on the workers of a Ray cluster; a killed worker's or lost node's tasks run again on others.

    Results do not depend on the number of workers: a task writes its file alone, and the tasks come back in their order.
    The driver is the process that calls; if it, or the head of the cluster, is killed, the same call continues with the
    files that are missing. Needs the extra `ray`.

    Args:
        address: `auto` for the cluster of this machine, or `HOST:PORT` of a head; None starts one on this machine, which
            ends with this process.
        num_cpus: Cores of a task.
        num_gpus: GPUs of a task, also a share of one.
        tasks_at_once: Tasks in the hands of the cluster; by default four for each that runs.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        tasks_at_once: int | None = None,
    ) -> None:
        require_package("ray")
        self.address = address
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus
        self.tasks_at_once = tasks_at_once
        self.device: str | None = "cuda" if num_gpus else "cpu"

    def run(self, work: Work, tasks: Iterable[Task], *, description: str = "") -> Iterator[Task]:
        """As `Runner.run`; `work` must be picklable."""
        import ray
        from ray.exceptions import RayError

        connect(self.address)
        remote = ray.remote(_complete).options(
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            max_retries=RETRIES,
        )

        shared_work = ray.put(work)
        capacity = self.tasks_at_once or TASKS_PER_PROCESS * num_workers(self.num_cpus, self.num_gpus)
        remaining = iter(tasks)

        started: deque[tuple[Task, Any]] = deque()
        try:
            with task_bar(tasks, description) as bar:
                while True:
                    for task in islice(remaining, capacity - len(started)):
                        started.append((task, remote.remote(shared_work, task, version("hf-xlsr"))))
                    if not started:
                        return

                    task, job = started.popleft()
                    _result(job)
                    bar.update()
                    yield task
        except RayError as error:
            raise XlsrError(
                f"A task cannot run on the Ray cluster ({type(error).__name__}: {error_line(error)}). The same command "
                "keeps what is finished."
            ) from error
        finally:
            for _, job in started:
                ray.cancel(job, force=False)


def connect(address: str | None) -> None:
    """Connects this process to a cluster, or starts one here; a process that is connected stays so."""
    import ray

    if ray.is_initialized():
        return
    os.environ.update(RUNTIME)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address is None:
        options |= {"include_dashboard": False}
    try:
        if address and ":" in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=CONNECTING).close()  # Ray would try for minutes
        # Without an address, Ray would join any cluster that runs here, or the one that RAY_ADDRESS names.
        ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise XlsrError(f"There is no Ray cluster at '{address}': {error}") from error


def num_workers(num_cpus: float, num_gpus: float) -> int:
    """The tasks that the cluster runs at a time."""
    import ray

    cluster: Any = ray.cluster_resources  # untyped
    resources = cluster()
    counts = []
    for name, share in (("CPU", num_cpus), ("GPU", num_gpus)):
        if share:
            counts.append(int(resources.get(name, 0) / share))
    return max(1, min(counts, default=1))


def _result(job: Any) -> None:
    """Waits for a task; an error of its work is raised as itself."""
    import ray
    from ray.exceptions import RayTaskError

    try:
        ray.get(job)
    except RayTaskError as error:
        raise error.cause from None


def _complete(work: Work, task: Task, driver_version: str) -> None:
    """Writes the file of a task on a node."""
    node = f"The node {platform.node()}"
    if version("hf-xlsr") != driver_version:
        raise XlsrError(
            f"{node} has hf-xlsr {version('hf-xlsr')}, this machine {driver_version}. Install one version."
        )
    folder = Path(task.output).parent
    if not folder.is_dir():
        raise XlsrError(f"{node} does not see '{folder}'. Use a folder that all nodes share.")
    complete(work, task)
