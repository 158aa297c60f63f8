"""Encoders' spaces side by side on a plane, as in figure 3 of CMLM: English and other sentences of Tatoeba.

usage: python benchmarks/peer_spaces.py [--peers e5-small minilm-en] [--ours "en-fr+de.NAME=FOLDER" ...] --output FILE.png
Encoders are named as for peers.py; a column is drawn for each language of the figure that all of them have.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from peer_units import Peer, read, sides
from peers import find_peers

from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.evaluation.plots import plot_spaces
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.precision import choose_precision

LANGUAGES = ("fra", "deu", "rus", "spa")  # of the figure, as Tatoeba names them


def draw(peers: list[Peer], file: Path) -> None:
    """Draws them, a row for each encoder.

    Raises:
        XlsrError: they have none of the figure's languages in common, or their names or the file will not do.
    """
    codes = [code for code in LANGUAGES if all(language_code(code) in peer.languages for peer in peers)]
    if not codes:
        raise XlsrError("the encoders have none of French, German, Russian and Spanish in common; name others.")
    path = "tatoeba/tatoeba_v1_xnli15"
    texts = {
        ("en", language_code(code)): sides(read(path, "source=english,target=text", where={"src_lang": code}))
        for code in codes
    }
    spaces = {}
    for peer in peers:
        encoder = load_encoder(str(peer.folder), dtype=choose_precision("auto"))
        name = peer.label.partition(".")[2] or peer.label
        spaces[name] = {
            pair: encode_pairs(encoder, *both, pair, prompt=peer.prompt, batch_size=128)
            for pair, both in texts.items()
        }
    plot_spaces(file, spaces)


def main() -> None:
    """Draws what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--ours", nargs="*", default=[])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    try:
        peers = find_peers(options.peers, options.ours)
        if not peers:
            raise XlsrError("no encoder is named; give --peers, --ours or both.")
        draw(peers, options.output)
    except XlsrError as error:
        raise SystemExit(f"peer_spaces: {error}") from None
    print(options.output)


if __name__ == "__main__":
    main()
