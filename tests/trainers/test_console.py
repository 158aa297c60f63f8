from __future__ import annotations

from hf_xlsr.trainers.console import log_line


def test_lines_are_short_and_name_the_parts() -> None:
    assert log_line(1500, {"loss": 2.0, "loss/xtr": 1.5}) == "step 1,500  loss 2.000 (xtr 1.500)"
    assert log_line(3, {"train_runtime": 5.0}) == ""
    assert log_line(3, {"eval_xsr/en-fr/dev/precision@1": 0.5}) == "step 3  xsr/en-fr/dev/precision@1 50.0 %"
