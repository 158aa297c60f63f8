"""`python -m hf_xlsr.cli`."""

from __future__ import annotations

import sys

from hf_xlsr.cli import main

if __name__ == "__main__":
    sys.exit(main())
