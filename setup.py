"""Packages of the wheel: `modeling`, `trainers` and `model_cards` are installed inside `hf_xlsr`.

That way no generic import name leaks into a user's environment. Everything else is in pyproject.toml.
"""

from __future__ import annotations

from setuptools import find_packages, setup

INSIDE = ("modeling", "trainers", "model_cards")

setup(
    packages=[
        *find_packages(include=["hf_xlsr", "hf_xlsr.*"]),
        *(f"hf_xlsr.{name}" for room in INSIDE for name in find_packages(include=[room, f"{room}.*"])),
    ],
    package_dir={f"hf_xlsr.{room}": room for room in INSIDE},
)
