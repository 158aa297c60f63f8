"""Draws docs/images/small_front.svg: accuracy of small encoders on Tatoeba against their speed, with their teacher.

usage: python -m docs.images.small_front SPEEDS EVALUATIONS...
SPEEDS/ENCODER.json are of `python -m benchmarks exports`, EVALUATIONS folders of `hf-xlsr evaluate --output`, where
ENCODER-int8 is the same encoder in ONNX int8. An encoder without ONNX files has one mark.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure

from hf_xlsr.evaluation.results import load_results

TEACHER = "e5-small"
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#64748b")


def accuracy(folders: list[Path], name: str, languages: Collection[str] = ()) -> tuple[float, Collection[str]]:
    """Mean accuracy on Tatoeba in per cent, both directions, in the `languages`, by default all."""
    files = (folder / name / "tatoeba.json" for folder in folders)
    file = next(file for file in files if file.is_file())
    records = [one for one in load_results(file)["metrics"].records.values() if one.metric == "accuracy"]
    records = [one for one in records if one.protocol == "tatoeba" and not one.is_mean]
    chosen = {one.target: 100 * one.value for one in records if not languages or one.target in languages}
    return fmean(chosen.values()), set(chosen)


def main() -> None:
    """Writes the picture."""
    speeds, *evaluations = map(Path, sys.argv[1:])
    matplotlib.rcParams |= {"svg.hashsalt": "front", "font.size": 10, "svg.fonttype": "path"}
    picture = Figure(figsize=(9.2, 3.4), facecolor="white")
    axes = picture.subplots()
    drawn = set()  # languages whose teacher is in the plot
    for colour, file in zip(COLOURS, sorted(speeds.glob("*.json")), strict=True):
        rows = {row["side"]: row for row in json.loads(file.read_text("utf-8"))["rows"]}
        _, languages = accuracy(evaluations, file.stem)
        label = f"en-{min(languages)}" if len(languages) == 1 else f"{len(languages) + 1} languages"
        if label not in drawn:
            drawn.add(label)
            teacher, _ = accuracy(evaluations, TEACHER, languages)
            axes.plot(1, teacher, "o", color=colour, markersize=9, fillstyle="none", label=f"{TEACHER}, {label}")
        for side, name, marker in (("torch float32", file.stem, "o"), ("onnx int8", f"{file.stem}-int8", "s")):
            if side not in rows:
                continue
            found, _ = accuracy(evaluations, name)
            text = f"{file.stem}, {label}, {side.split()[1]}"
            axes.plot(1 / rows[side]["ratio"], found, marker, color=colour, markersize=9, label=text)
    axes.set(xscale="log", xlabel=f"sentences per second, times those of {TEACHER}", ylabel="Tatoeba, accuracy, %")
    ticks = [2**power for power in range(9)]
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    picture.tight_layout()
    picture.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
