"""Training from a checkout, under `python`, `accelerate launch` or `torchrun`.

Takes what `hf-xlsr train` takes: a recipe by name or path, and any of its keys as `--key value`.
"""

from __future__ import annotations

import sys

from hf_xlsr.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
