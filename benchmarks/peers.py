"""Encoders side by side under every protocol that the sets behind HF_XLSR_DATA feed; docs/results.md has the outcome.

One command does it all and can be stopped and called again: each encoder and unit leaves a file, and a file of the same
weights is not made twice. Peers are folders of HF_XLSR_ENCODERS, ours are run folders of recipes.

usage: python benchmarks/peers.py [--peers e5-small minilm-en] [--ours en-fr=RUN/model en-de=RUN/model]
           [--units tatoeba bucc ...] [--pooling mean] [--output outputs/results/peers]
Several encoders of one language pair are told apart by a name behind a dot: en-fr.mnrl=FOLDER. An encoder of more
languages names them all, en-fr+de+zh.NAME=FOLDER, and one of English alone none, en.NAME=FOLDER. With --pooling an
encoder's last states are pooled so, whatever it does after them itself.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from peer_units import UNITS, USUAL_UNITS, Peer
from rich.console import Console
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling

from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.evaluation.markdown_report import markdown_report
from hf_xlsr.evaluation.report import load_results, results_table, save_results
from hf_xlsr.runs.train import hardware_name
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.precision import choose_precision

PEERS: dict[str, dict[str, Any]] = {
    "e5-small": {
        "languages": "de fr es it zh ru ar bg el tr vi hi ur th sw".split(),
        "prompt": "query: ",
        "skip": ("zero-shot-trained",),  # 118 million parameters: minutes for each epoch
    },
    # An English encoder: what it scores across languages is chance, names and cognates.
    "minilm-en": {"languages": ["de", "fr"], "prompt": "", "skip": ("zero-shot-trained",)},
}


def find_peers(names: list[str], ours: list[str]) -> list[Peer]:
    """The encoders that the command line names.

    Raises:
        XlsrError: a name is unknown, or HF_XLSR_ENCODERS is not set.
    """
    peers = []
    for name in names:
        if name not in PEERS:
            raise XlsrError(f"--peers names '{name}'; known are {', '.join(PEERS)}.")
        if "HF_XLSR_ENCODERS" not in os.environ:
            raise XlsrError(f"peer '{name}' is a folder of HF_XLSR_ENCODERS, which is not set; see docs/data.md.")
        peers.append(Peer(name, Path(os.environ["HF_XLSR_ENCODERS"]) / name, **PEERS[name]))
    for piece in ours:
        label, _, folder = piece.partition("=")
        pivot, _, others = label.partition(".")[0].partition("-")
        if not folder or pivot != "en":
            raise XlsrError(f"--ours has '{piece}'; write en-XX=FOLDER, en-XX+YY.NAME=FOLDER or en.NAME=FOLDER.")
        peers.append(Peer(label, Path(folder), others.split("+") if others else [], ours=True))
    return peers


def pooled(encoder: SentenceTransformer, pooling: str) -> SentenceTransformer:
    """The same transformer with another pooling, and nothing after it.

    Args:
        encoder: As it was loaded.
        pooling: `mean` or `cls`.
    """
    states = encoder[0]
    return SentenceTransformer(
        modules=[states, Pooling(states.get_embedding_dimension(), pooling), Normalize()], device=str(encoder.device)
    )


def measure(peer: Peer, units: list[str], output: Path, console: Console, pooling: str = "") -> dict[str, float]:
    """Runs the units that have no file of this encoder yet; gives the metrics of all."""
    revision = content_hash(peer.folder) + (f" pooled by {pooling}" if pooling else "")
    precision = choose_precision("auto")
    encoder: Any = None
    metrics: dict[str, float] = {}
    for unit in (unit for unit in units if unit not in peer.skip):
        file = output / peer.label / f"{unit}.json"
        if not (file.is_file() and load_results(file)["settings"].get("revision") == revision):
            if encoder is None:
                loaded = load_encoder(str(peer.folder), dtype=precision)
                encoder = CachedEncoder(pooled(loaded, pooling) if pooling else loaded)
            encoding = {"prompt": peer.prompt, "batch_size": 128, "show_progress_bar": True}
            wall, processor = time.monotonic(), time.process_time()
            found = UNITS[unit](encoder, peer, encoding)
            settings = {
                "model": peer.label,
                "revision": revision,
                "unit": unit,
                "prompt": peer.prompt,
                "languages": peer.languages,
                "seed": 1,
                "precision": precision,
                "hardware": hardware_name(loaded.device),
                "threads": torch.get_num_threads(),
                "seconds": round(time.monotonic() - wall, 1),
                "cpu_seconds": round(time.process_time() - processor, 1),
            }
            save_results(file, found, settings=settings)
            if found:
                console.print(results_table(found, title=f"{peer.label}, {unit}"))
        metrics |= load_results(file)["metrics"]
    return metrics


def main() -> None:
    """Measures, then writes the report and the time that all of it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--ours", nargs="*", default=[])
    parser.add_argument("--units", nargs="*", default=USUAL_UNITS, choices=list(UNITS))
    parser.add_argument("--pooling", default="", choices=["mean", "cls"])
    parser.add_argument("--output", type=Path, default=Path("outputs/results/peers"))
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    try:
        peers = find_peers(options.peers, options.ours)
        results = {
            peer.label: measure(peer, options.units, options.output, console, options.pooling) for peer in peers
        }
    except XlsrError as error:
        raise SystemExit(f"peers: {error}") from None
    report = markdown_report(options.output, results)
    spent = [load_results(file)["settings"] for file in sorted(options.output.glob("*/*.json"))]
    total = sum(entry["cpu_seconds"] for entry in spent) / 60
    console.print(f"{len(spent)} units, {total:.0f} minutes of processor time in all; report {report}")


if __name__ == "__main__":
    main()
