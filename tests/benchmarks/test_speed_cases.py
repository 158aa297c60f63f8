"""The speed cases and the GPU script at their smallest sizes: sides that compute the same loss, and resumable slices."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, harness


def measured(case: str, **options: Any) -> dict[str, Any]:
    """One round of the smallest job, in this process."""
    module = importlib.import_module(f"benchmarks.{case}")
    values = {**module.DEFAULTS, **module.QUICK, "threads": 1, **options}
    (job,) = harness.jobs_of(case, values)
    found = harness.work(case, job, harness.sides_of(case, job), 1)
    assert all(seconds > 0 for of_side in found["seconds"].values() for seconds in of_side)
    return found["figures"]


def test_steps_compute_the_loss_of_their_references() -> None:
    hictl, cmlm, queue = measured("hictl"), measured("cmlm"), measured("queue_info_nce", precisions=["float32"])
    assert hictl["ours"]["lm"] == pytest.approx(hictl["full logits"]["lm"], rel=1e-2)
    assert cmlm["ours, one sentence"]["loss"] == pytest.approx(cmlm["full logits"]["loss"], rel=1e-2)
    assert queue["float32"]["loss"] == pytest.approx(queue["naive"]["loss"], rel=1e-5)
    assert queue["int8"]["loss"] == pytest.approx(queue["naive"]["loss"], rel=1e-2)
    assert measured("hictl", layers=0).keys() == {"ours", "full logits"}
    assert measured("senteval")["one by one"]["largest_difference"] <= 0.005


def test_searches_find_the_translations() -> None:
    exact = measured("mining")
    assert {exact[side]["true_pairs"] for side in ("ours", "semantic_search")} == {1.0}
    assert measured("mining", kind="memory")["ours"]["true_pairs"] == 1.0


def test_attention_and_parts_of_a_step() -> None:
    assert measured("attention").keys() == {"sdpa", "eager"}
    parts = measured("dual_momentum")["dual_momentum"]
    assert min(parts[part] for part in ("encoders", "momentum encoders", "loss", "backward", "enqueue")) > 0


def test_exports_have_the_embeddings_of_torch() -> None:
    found = measured("onnx_files")
    assert min(side["lowest_cosine"] for side in found.values()) > 0.99
    assert found["onnx int8"]["file_bytes"] < found["onnx float32"]["file_bytes"]


def test_memory_of_a_step_is_its_peak() -> None:
    def hold() -> int:
        block = bytearray(b"x") * (64 << 20)
        time.sleep(0.05)
        return len(block)

    extra, result = harness.peak_bytes(hold)
    assert result == 64 << 20 and 60 << 20 < extra < 200 << 20


def test_sides_take_turns_and_ratios_are_paired(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[list[str], int]] = []

    def worker(words: list[str], **_: str) -> dict[str, Any]:
        job, sides, rounds = json.loads(words[-1])
        calls.append((sides, rounds))
        seconds = {"sdpa": [2.0, 3.0, 8.0], "eager": [1.0, 2.0, 4.0]}
        return (
            {"seconds": seconds, "figures": {"sdpa": {}, "eager": {}}} if rounds else {"extra_bytes": 2 + len(calls)}
        )

    monkeypatch.setattr(harness, "in_worker", worker)
    harness.main(["attention", "--quick", "--rounds", "3", "--lengths", "8", "--output", str(tmp_path / "a.json")])
    report = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert calls == [(["sdpa", "eager"], 3), (["sdpa"], 0), (["eager"], 0)]
    assert report["rows"][0]["ratio"] == 2.0 and report["rows"][0]["range"] == [1.5, 2.0]
    assert report["options"]["lengths"] == [8] and report["rows"][0]["memory_ratio"] == 0.8


def gpu_report(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["gpu", "--quick", *words])
    return gpu.main()


def test_gpu_script_measures_every_slice_and_skips_what_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "gpu.json"
    assert gpu_report(monkeypatch, "--output", str(output)) == 0
    slices = json.loads(output.read_text("utf-8"))["slices"]
    assert list(slices) == list(gpu.slices(gpu.QUICK))
    shown = gpu.with_shares(slices)
    for method in ("lightweight", "dual_momentum", "hictl", "cmlm"):
        assert shown[f"train {method} bfloat16"].keys() >= {"speed_to_peer", "memory_to_peer", "speed_to_float32"}
    assert 0 < shown["queue 2000 int8 bfloat16"]["of_bandwidth"] < 1
    assert shown["mine 1000"]["accuracy"] > 0.98
    limits = slices.pop("limits")
    output.write_text(json.dumps({**json.loads(output.read_text("utf-8")), "slices": slices}), "utf-8")
    ran: list[str] = []
    monkeypatch.setattr(gpu, "run_slice", lambda name, quick: ran.append(name) or limits)
    assert gpu_report(monkeypatch, "--output", str(output), "--only", "limits") == 0
    assert ran == ["limits"]


def test_failed_slice_is_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(name: str, quick: bool) -> dict[str, Any]:
        if "float32" in name:
            raise RuntimeError("no memory")
        return {"seconds": 1.0, "sentences_per_second": 1.0}

    output = tmp_path / "gpu.json"
    monkeypatch.setattr(gpu, "run_slice", broken)
    assert gpu_report(monkeypatch, "--output", str(output), "--only", "encode") == 1
    assert list(json.loads(output.read_text("utf-8"))["slices"]) == ["encode bfloat16"]


def test_missed_neighbours_inflate_margins() -> None:
    some, every = (measured("recall", probes=[probes])["cells"] for probes in (1, 8))
    assert some["recall"] < every["recall"] == 1.0 == every["pairs kept"]
    assert some["inflated"] > every["inflated"] == 0.0
