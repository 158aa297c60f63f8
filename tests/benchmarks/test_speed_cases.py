"""The speed cases and the GPU script at their smallest sizes: sides that compute the same loss, and resumable slices."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, harness, training_step


def measured(case: str, **options: Any) -> dict[str, Any]:
    """One round of the smallest job, in this process."""
    module = importlib.import_module(f"benchmarks.{case}")
    values = {**module.DEFAULTS, **module.QUICK, "threads": 1, **options}
    (job,) = harness.jobs_of(case, values)
    result = harness.work(case, job, harness.sides_of(case, job), 1)
    assert min(map(min, result["seconds"].values())) > 0
    return result["figures"]


def test_steps_compute_the_loss_of_their_references() -> None:
    hictl = measured("hictl")
    assert hictl["ours"]["lm"] == pytest.approx(hictl["full logits"]["lm"], rel=1e-2)

    cmlm = measured("cmlm")
    assert cmlm["ours, one sentence"]["loss"] == pytest.approx(cmlm["full logits"]["loss"], rel=1e-2)

    queue = measured("queue_info_nce", precisions=["float32"])
    assert queue["float32"]["loss"] == pytest.approx(queue["naive"]["loss"], rel=1e-5)
    assert queue["int8"]["loss"] == pytest.approx(queue["naive"]["loss"], rel=1e-2)


def test_searches_find_the_translations() -> None:
    exact = measured("mining")
    assert exact["ours"]["true_pairs"] == 1.0
    assert exact["ours"]["of_limit"] > 0
    assert exact["semantic_search"]["true_pairs"] == 1.0

    in_memory = measured("mining", kind="memory")
    assert in_memory["ours"]["true_pairs"] == 1.0


def test_stored_vectors_of_one_byte_find_nearly_all_neighbours() -> None:
    figures = measured("stored_vectors")
    assert figures["float32"]["recall"] == 1
    assert figures["int8"]["recall"] > 0.97
    assert figures["int8"]["file_bytes"] < 0.51 * figures["float16"]["file_bytes"]


def test_page_of_coverage_has_a_line_for_each_case() -> None:
    coverage = importlib.import_module("benchmarks.coverage")
    job = {"kind": "known", "draws": 1, "seed": 1}
    sides = coverage.sides(job)[:2]
    step = coverage.prepare(job, sides)
    lines = coverage.page([{"side": side, **step(side, False)} for side in sides])
    assert [line.split(" | ")[1] for line in lines[2:]] == ["300", "1200"]
    assert lines[2].split(" | ")[2].startswith(("0.0%", "100.0%"))


def test_page_of_meaning_has_means_and_ranges() -> None:
    meaning = importlib.import_module("benchmarks.meaning")
    rows = []
    for side, errors in (("e5-small", [3.0]), ("mined", [1.0, 2.0])):
        figures = meaning.of_seeds([{"number": error} for error in errors])
        rows.append({"side": side, "seconds": 1.0, "ratio": 1.0, "range": [1.0, 1.0], **figures})
    assert meaning.page(rows)[2:] == ["| e5-small | 3.0 |", "| mined | 1.5 (1.0-2.0) |"]


@pytest.mark.slow
def test_exports_have_the_embeddings_of_torch() -> None:
    figures = measured("exports")
    assert min(side["lowest_cosine"] for side in figures.values()) > 0.99
    assert figures["onnx int8"]["file_bytes"] < figures["onnx float32"]["file_bytes"]
    assert figures["torch float32"]["of_limit"] > 0


@pytest.mark.slow
def test_engines_share_the_work() -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    assert measured("engines").keys() == {"ray", "pool"}

    figures = measured("engines", kind="encode", workers=2, sleep=0.5)
    for engine in ("ray", "pool"):
        assert figures[f"{engine} 1"]["efficiency"] == 1
        assert figures[f"{engine} 2"]["efficiency"] > 0.5


def gpu_report(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["gpu", "--quick", *words])
    return gpu.main()


def test_gpu_script_has_a_slice_for_each_question() -> None:
    names = set(gpu.slices(gpu.FULL))
    assert names >= {"limits", "mine 1000000", "step", "rows data", "rows whole"}
    assert names >= {f"train {side} bfloat16" for side in ("lightweight", "dual_momentum", "hictl", "cmlm", gpu.PEER)}
    assert names >= {f"cache {batch} ours bfloat16" for batch in (512, 4096)}
    assert names >= gpu.GOALS.keys()
    assert {name.split()[0] for name in names} == gpu.KINDS.keys() == gpu.FULL.keys() == gpu.QUICK.keys()


def test_slices_are_compared_with_the_limits_and_with_peers() -> None:
    queue = "queue 10000000 bfloat16 bfloat16"
    peer = "CachedMultipleNegativesRankingLoss"
    shown = gpu.with_shares({
        "limits": {"bfloat16_flops": 100.0, "float32_flops": 50.0, "bandwidth": 10.0},
        "mine 1000": {"flops": 20.0},
        queue: {"flops": 70.0, "bytes_per_second": 1.0},
        "cache 512 ours bfloat16": {"seconds": 2.0},
        f"cache 512 {peer} bfloat16": {"seconds": 3.0},
        "rows data": {"seconds": 2.0},
        "rows whole": {"seconds": 4.0},
    })  # fmt: skip
    assert shown["mine 1000"]["of_matrix_limit"] == 0.4
    assert (shown[queue]["of_matrix_limit"], shown[queue]["goal_of_matrix_limit"]) == (0.7, 0.6)
    assert shown["cache 512 ours bfloat16"]["speed_to_peer"] == 1.5
    assert shown["rows data"]["speed_to_whole"] == 2.0


def test_smallest_slice_runs_on_a_processor() -> None:
    figures = gpu.run_slice("limits", quick=True)
    assert min(figures["bfloat16_flops"], figures["float32_flops"], figures["bandwidth"]) > 0


@pytest.mark.slow
def test_step_is_split_into_kinds_of_work() -> None:
    figures = gpu.run_slice("step", quick=True)
    shares = [figures[kind] for kind in (*training_step.KINDS, "other")]
    assert sum(shares) == pytest.approx(100)
    assert figures["products"] > 0 and figures["norms of the gradient"] > 0


@pytest.mark.slow
def test_gpu_script_measures_every_slice_and_skips_what_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "gpu.json"
    assert gpu_report(monkeypatch, "--output", str(output)) == 0

    report = json.loads(output.read_text("utf-8"))
    slices = report["slices"]
    assert list(slices) == list(gpu.slices(gpu.QUICK))

    shown = gpu.with_shares(slices)
    for method in ("lightweight", "dual_momentum", "hictl", "cmlm"):
        assert shown[f"train {method} bfloat16"].keys() >= {"speed_to_peer", "memory_to_peer", "speed_to_float32"}
    assert 0 < shown["queue 2000 int8 bfloat16"]["of_bandwidth"] < 1
    assert shown["mine 1000"]["accuracy"] > 0.98

    limits = slices.pop("limits")
    output.write_text(json.dumps(report), "utf-8")
    ran: list[str] = []
    monkeypatch.setattr(gpu, "run_slice", lambda name, quick: ran.append(name) or limits)
    assert gpu_report(monkeypatch, "--output", str(output), "--only", "limits") == 0
    assert ran == ["limits"]
