"""Tasks on a Ray cluster of this machine: three nodes, killed workers, a lost node, a late one, a killed driver."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray_workers import import_path, kill_worker

from hf_xlsr.data import preparation
from hf_xlsr.data.sources import Source
from hf_xlsr.data.training_rows import clean_pairs
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.ray_tasks import RUNTIME, RayRunner
from hf_xlsr.utils.runners import runner_of
from hf_xlsr.utils.tasks import InProcess, Task

ray = pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20}
COUNT = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two more nodes."""
    from ray.cluster_utils import Cluster

    os.environ.update(RUNTIME)
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", import_path(__file__))
    nodes = Cluster(initialize_head=True, head_node_args=NODE)
    for _ in range(2):
        nodes.add_node(**NODE)
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    nodes.shutdown()
    patch.undo()


def square(output: Path, number: int, notes: Path | None = None) -> None:
    """Writes a square, slowly, and notes that it ran."""
    if notes is not None:
        (notes / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(0.3)
    output.write_text(str(number * number))


def tasks_of(folder: Path, count: int = COUNT) -> list[Task]:
    folder.mkdir(parents=True, exist_ok=True)
    return [Task(folder / f"{number}.txt", number) for number in range(count)]


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.txt")}


def expected(tmp_path: Path) -> dict[str, str]:
    return {f"{number}.txt": str(number * number) for number in range(COUNT)}


def test_kills_and_nodes_change_no_result(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    notes = tmp_path / "notes"
    notes.mkdir()
    generator = random.Random(1)
    runner = RayRunner(cluster.address)
    done = []
    num_kills = 0
    for task in runner.run(partial(square, notes=notes), tasks_of(folder)):
        done.append(task.content)
        if len(done) % 2 == 0 and num_kills < 10:
            num_kills += kill_worker(generator)
        if len(done) == 8:
            cluster.remove_node(cluster.list_all_nodes()[-1])
        if len(done) == 12:
            cluster.add_node(**NODE)
    assert num_kills > 3
    assert done == list(range(COUNT))
    assert contents(folder) == expected(tmp_path)
    runs = [file.name.split("-")[0] for file in notes.iterdir()]
    assert max(map(runs.count, runs)) <= 5


def test_finished_files_are_kept(cluster: Any, tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path / "kept", 4)
    tasks[2].output.write_text("kept")
    list(RayRunner(cluster.address).run(square, tasks))
    assert contents(tmp_path / "kept") == {"0.txt": "0", "1.txt": "1", "2.txt": "kept", "3.txt": "9"}


def fail(output: Path, number: int) -> None:
    raise XlsrError(f"row {number} is bad.")


def test_error_of_the_work_is_raised_as_itself(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="row 0 is bad"):
        list(RayRunner(cluster.address).run(fail, tasks_of(tmp_path / "bad", 2)))


def test_folder_that_nodes_do_not_see_is_named(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="elsewhere.*share"):
        list(RayRunner(cluster.address).run(square, [Task(tmp_path / "elsewhere" / "0.txt", 0)]))


def test_node_with_another_version_is_refused(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.utils.ray_tasks.version", lambda name: "9.9")
    with pytest.raises(XlsrError, match=r"9\.9"):
        list(RayRunner(cluster.address).run(square, tasks_of(tmp_path / "version", 1)))


CONNECTION = """
import ray
from hf_xlsr.utils.ray_tasks import connect
connect(None)
print(ray.get_runtime_context().gcs_address)
"""


@pytest.mark.parametrize("variable", ["RAY_ADDRESS", None])
def test_without_an_address_no_other_cluster_is_joined(variable: str | None, cluster: Any) -> None:
    environment = dict(os.environ)
    if variable:
        environment[variable] = cluster.address
    command = [sys.executable, "-c", CONNECTION]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=300)
    assert run.stdout.strip() != cluster.address


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_ray_tasks import RayRunner, square, tasks_of
for task in RayRunner({address!r}).run(square, tasks_of(Path({folder!r}))):
    print(task.content, flush=True)
"""


def test_killed_driver_continues(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "driver"
    code = KILLED.format(tests=str(Path(__file__).parent), address=cluster.address, folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "5":
            break
    process.kill()
    process.wait()
    assert len(contents(folder)) < COUNT

    list(RayRunner(cluster.address).run(square, tasks_of(folder)))
    assert contents(folder) == expected(tmp_path)


def test_prepared_rows_are_those_of_one_process(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "SHARD_ROWS", 50)
    file = tmp_path / "pairs.tsv"
    rows = [f"text {number % 300}\ttexte {number % 300}\n" for number in range(400)]
    file.write_text("en\tfr\n" + "".join(rows), "utf-8")
    stored = []
    for processes in (1, f"ray:{cluster.address}"):
        monkeypatch.setenv("HF_XLSR_CACHE", str(tmp_path / f"cache {len(stored)}"))
        prepared = clean_pairs(
            [Source(path=str(file))],
            languages=["en", "fr"],
            evaluation_texts=[],
            cleaning=["normalize", "near_duplicates", "deduplicate"],
            num_proc=processes,
        )
        stored.append((prepared.report, (prepared.folder / "text.arrow").read_bytes()))
    assert stored[0] == stored[1]


@pytest.mark.parametrize(("processes", "kind"), [(1, InProcess), ("ray", RayRunner), ("ray:auto", RayRunner)])
def test_runner_of_a_name(processes: Any, kind: Callable[..., Any]) -> None:
    assert isinstance(runner_of(processes), kind)


def test_unknown_engine_is_named() -> None:
    with pytest.raises(XlsrError, match="'dask'"):
        runner_of("dask")


def test_missing_cluster_is_named() -> None:
    code = "from hf_xlsr.utils.ray_tasks import RayRunner; list(RayRunner('127.0.0.1:1').run(print, []))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert "XlsrError" in run.stderr and "127.0.0.1:1" in run.stderr
