"""Runs a speed case: `python -m benchmarks CASE [--quick] [--OPTION VALUE ...]`."""

from __future__ import annotations

from benchmarks.harness import main

main()
