"""What the tests of the mteb bridge share: a model with an encoder for each language, and tasks with data set by hand."""

from __future__ import annotations

import copy
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

ENGLISH = [
    "The children are playing in the garden behind the house.",
    "She bought three tickets for the theatre yesterday.",
    "Where did you leave the keys of the car?",
    "The weather will be better at the end of the week.",
    "He has never written such a long letter to his brother.",
    "We are looking for a place where we can sleep tonight.",
]
FRENCH = [
    "Les enfants jouent dans le jardin derrière la maison.",
    "Elle a acheté trois billets pour le théâtre hier.",
    "Où as-tu laissé les clés de la voiture ?",
    "Le temps sera meilleur à la fin de la semaine.",
    "Il n'a jamais écrit une si longue lettre à son frère.",
    "Nous cherchons un endroit où nous pouvons dormir cette nuit.",
]


def shaken(model: SentenceTransformer, seed: int) -> SentenceTransformer:
    """A copy with other weights."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.3)
    return other


def routed_model(folder: str, routes: tuple[str, ...] = ("en", "fr"), **options: Any) -> SentenceTransformer:
    """A model whose routes have different weights: vectors of a wrong route are far off."""
    stock = SentenceTransformer(folder, device="cpu")
    modules = {}
    for seed, route in enumerate(routes):
        modules[route] = list(shaken(stock, seed).children())

    router = Router(modules, default_route=routes[0], **options)
    return SentenceTransformer(modules=[router], device="cpu")


def table(**columns: Any) -> Dataset:
    return Dataset.from_dict(columns)


def with_data(task: Any, data: Any) -> Any:
    """A task of mteb whose data are set by hand."""
    task.dataset = data
    task.data_loaded = True
    return task


def sides(pairs: list[dict[str, str]]) -> tuple[list[str], list[str]]:
    """English and French; no sentence twice, so that no two vectors are tied."""
    distinct = {pair["target"]: pair["source"] for pair in pairs}
    return list(distinct.values()), list(distinct)
