"""Mining on a Ray cluster of three nodes: killed workers, a lost node, a late one, a killed head."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder, assert_same_pairs, numbered, write_lines
from ray_workers import import_path, kill_worker

from hf_xlsr.mining import MinedBitext, mine_bitext, stages
from hf_xlsr.utils.ray_tasks import RETRIES, RUNTIME

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20}
KILLS = 20
SHARD = 64

DRIVER = """
import os, sys
from pathlib import Path
import numpy as np
from mining_fakes import NumberEncoder
from test_mining_on_ray import SHARD, Slow
from hf_xlsr.mining import mine_bitext, stages
from hf_xlsr.utils.ray_tasks import RayRunner
address, folder = sys.argv[1], Path(sys.argv[2])
stages.SMALLEST_SHARD = SHARD
runner = RayRunner(address)
mined = mine_bitext(folder / "en.txt", folder / "fr.txt", encoder=Slow(folder / "runs"), folder=folder / "work", k=3,
                    method=sys.argv[3], runner=runner)
np.savez(folder / "mined.npz", source=mined.source, target=mined.target, score=mined.score)
"""


class Slow(NumberEncoder):
    """Sleeps, and notes which texts it encodes."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes

    def encode(self, texts: Any, **options: Any) -> np.ndarray:
        key = zlib.crc32("".join(texts).encode())
        (self.notes / f"{key}-{os.getpid()}-{time.monotonic_ns()}").touch()
        time.sleep(0.5)
        return super().encode(texts)


@contextmanager
def running_cluster() -> Iterator[Any]:
    """A head and two more nodes."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        for _ in range(2):
            nodes.add_node(**NODE)
        nodes.wait_for_nodes()
        yield nodes
    finally:
        nodes.shutdown()


@contextmanager
def started(folder: Path, address: str, method: str) -> Iterator[subprocess.Popen[bytes]]:
    """Mining of the corpus by another process, which ends with the block."""
    process = subprocess.Popen([sys.executable, "-c", DRIVER, address, str(folder), method])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of two texts; workers import the encoder of this file."""
    for name, value in {**RUNTIME, "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", import_path(__file__))
    monkeypatch.setattr(stages, "SMALLEST_SHARD", SHARD)
    write_lines(tmp_path / "en.txt", numbered("en", 1600))
    write_lines(tmp_path / "fr.txt", numbered("fr", 1500, start=300, seed=1))
    (tmp_path / "runs").mkdir()
    return tmp_path


def assert_as_alone(folder: Path, method: str) -> None:
    """The pairs are those of one process, and its neighbours too."""
    expected = mine_bitext(
        folder / "en.txt", folder / "fr.txt", encoder=NumberEncoder(), folder=folder / "alone", k=3, method=method
    )
    with np.load(folder / "mined.npz") as arrays:
        assert_same_pairs(MinedBitext(**arrays), expected)
    files = [*(folder / "alone").glob("*.vectors/vectors.npy"), *(folder / "alone").glob("pairs/pairs.*")]
    assert len(files) == 3
    for file in files:
        assert (folder / "work" / file.relative_to(folder / "alone")).read_bytes() == file.read_bytes()


class Killer:
    """Kills a worker whenever some more tasks have finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generator = random.Random(1)
        self.kills = 0
        self.finished = 0

    def tasks(self) -> int:
        """The number of finished encoding tasks."""
        return len(list(self.folder.glob("work/*.vectors/shards/*.npz")))

    def step(self, limit: int) -> None:
        time.sleep(0.2)
        finished = self.tasks()
        if self.kills < limit and finished >= self.finished + 2 and kill_worker(self.generator):
            self.kills += 1
            self.finished = finished


def test_kills_of_workers_nodes_and_the_head_change_no_pair(corpus: Path) -> None:
    killer = Killer(corpus)
    with running_cluster() as cluster, started(corpus, cluster.address, "exact") as process:
        while killer.kills < KILLS - 5:
            assert process.poll() is None, "ended before its head was killed"
            before = killer.kills
            killer.step(KILLS - 5)
            if before < killer.kills == 5:
                cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0], allow_graceful=False)
            if before < killer.kills == 8:
                cluster.add_node(**NODE)
        cluster.remove_node(cluster.head_node, allow_graceful=False)
        process.wait(300)
        assert process.returncode
        assert not (corpus / "mined.npz").exists()

    with running_cluster() as cluster, started(corpus, cluster.address, "exact") as process:
        while process.poll() is None:
            killer.step(KILLS)
        assert process.returncode == 0

    assert killer.kills == KILLS
    assert_as_alone(corpus, "exact")
    runs = Counter(note.name.rsplit("-", 2)[0] for note in (corpus / "runs").iterdir())
    assert max(runs.values()) <= RETRIES + 1


def test_cells_on_a_cluster_find_what_one_process_does(corpus: Path) -> None:
    with running_cluster() as cluster, started(corpus, cluster.address, "ivf") as process:
        assert process.wait(600) == 0
    assert_as_alone(corpus, "ivf")
