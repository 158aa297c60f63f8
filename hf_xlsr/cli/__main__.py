"""`python -m hf_xlsr.cli`."""

from __future__ import annotations

import sys

from hf_xlsr.cli import main

sys.exit(main())
