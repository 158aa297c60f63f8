"""Two small tables of a campaign, and figures that a run of them would have left; nothing is trained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from campaign_fingerprint import training_fingerprint
from campaign_jobs import FINGERPRINT, measurement_of, place_of
from campaign_plan import Table, read_tables, run_of

from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.evaluation.report import save_results

TABLES = """
- name: queue
  title: Size of the queue
  paper: Figure 2.
  recipe: moco_en_de_open
  equal: steps
  languages: en-de
  units: [sts]
  ends: [short, long]
  axis: keys
  rows:
    - {name: short, options: ["--model.queue_size", "64"], x: 64}
    - {name: middle, options: ["--model.queue_size", "512"], x: 512}
    - {name: long, label: "4,096 | more", options: ["--model.queue_size", "4096"], x: 4096}
    - {name: e5-small, encoder: e5-small}
  columns:
    - {title: STS, metric: "sts-*/*/test/spearman_all"}
    - {title: steps, metric: "settings:steps", scale: 1, digits: 0}
  claims:
    - {text: Longer is better, better: long, worse: short, column: STS}
- name: sequence
  title: One after the other
  paper: No paper.
  recipe: moco_en_de_open
  equal: processor time
  seconds: 60
  rows:
    - {name: half, share: 0.5, hidden: true}
    - {name: after, share: 0.5, options: ["--model.encoders.de", "{half}/model"]}
    - {name: whole}
  columns: [{title: STS, metric: "sts-*/en/test/spearman_all"}]
"""


def example_tables(folder: Path) -> list[Table]:
    file = folder / "tables.yaml"
    file.write_text(TABLES, "utf-8")
    return read_tables(file)


def measured(table: Any, name: str, seed: int, value: float, folder: Path, **units: Any) -> None:
    row = table.row(name)
    run_folder = run_of(table, row, seed, folder / "runs")
    if run_folder is not None:
        place_of(run_folder).mkdir(parents=True, exist_ok=True)
        (place_of(run_folder) / FINGERPRINT).write_text(training_fingerprint(table, row), "utf-8")
        settings = {"steps": 600, "hardware": "A processor", "threads": 2, "seconds": {"training": 60.0}}
        save_results(run_folder.folder / "results.json", {}, settings=settings)
    job = measurement_of(table, row, seed, folder / "runs", folder / "measured")
    model = job.model or Path(os.environ["HF_XLSR_ENCODERS"]) / name
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}", "utf-8")
    # What other languages, or means over more of them, say is no figure of an English and German table.
    others = {"sts-average-of-5/fr/test/spearman_all": 0.1, "sts-average-of-5/mean-of-2/test/spearman_all": 0.2}
    metrics = {"sts-average-of-5/en/test/spearman_all": value, **others}
    for unit, found in {"sts": metrics, **units}.items():
        save_results(job.output / job.label / f"{unit}.json", found, settings={"revision": content_hash(model)})
