"""A table of token embeddings of which only the rows of the training data are trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import nn

from hf_xlsr.utils.errors import XlsrError


class TrainableRows(nn.Module):
    """A frozen table of token embeddings, and a parameter with those of its rows that are trained.

    It takes the place of an encoder's table: ids stay as they are, and any text can be encoded. Gradient, state of the
    optimiser and momentum copy are of the trained rows alone. Training the whole table gives the same values to these
    rows; it changes the others by weight decay alone. Saved weights are those of the whole table, under its name.

    Args:
        table: The whole table, `(vocabulary, width)`, which shares its weight.
        ids: The token ids whose rows are trained, distinct and ascending.

    Examples:
        >>> table = nn.Embedding(5, 2)
        >>> rows = TrainableRows(table, torch.tensor([1, 3]))
        >>> [name for name, weight in rows.named_parameters() if weight.requires_grad], rows.rows.shape
        (['rows'], torch.Size([2, 2]))
        >>> ids = torch.tensor([[3, 4]])
        >>> torch.equal(rows.eval()(ids), table(ids)), list(rows.state_dict())
        (True, ['weight'])
    """

    positions: torch.Tensor
    ids: torch.Tensor

    def __init__(self, table: nn.Embedding, ids: torch.Tensor) -> None:
        if not is_plain_table(table):
            raise XlsrError(
                f"`trainable_rows` needs a plain table of token embeddings, got {type(table).__name__}. Leave it out."
            )
        super().__init__()
        self.num_embeddings, self.embedding_dim = table.weight.shape
        self.padding_idx = table.padding_idx
        ids = ids.to(table.weight.device)
        self.frozen = nn.Parameter(table.weight.detach(), requires_grad=False)
        self.rows = nn.Parameter(self.frozen[ids], requires_grad=table.weight.requires_grad)

        positions = torch.full((len(self.frozen),), -1, dtype=torch.int32, device=ids.device)
        positions[ids] = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
        self.register_buffer("ids", ids, persistent=False)
        self.register_buffer("positions", positions, persistent=False)
        self.padding_row = None
        if self.padding_idx is not None and positions[self.padding_idx] >= 0:
            self.padding_row = int(positions[self.padding_idx])
        self.train(table.training)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of tokens. In training mode all ids must be of trained rows; an unknown one is an error."""
        positions = self.positions[input_ids].long()
        if self.training:
            return F.embedding(positions, self.rows, self.padding_row)
        trained = F.embedding(positions.clamp_min(0), self.rows)
        others = F.embedding(input_ids, self.frozen)
        return torch.where((positions >= 0).unsqueeze(-1), trained, others)

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the whole table with the trained rows in it, `(vocabulary, width)`."""
        table = self.frozen.detach().clone()
        table[self.ids] = self.rows.detach()
        return table

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        # One tensor for all names of the table, so that it is stored once.
        table = _saved_tables[self]() if self in _saved_tables else None
        if table is None or not any(value is table for value in destination.values()):
            table = self.weight
            _saved_tables[self] = ref(table)
        destination[f"{prefix}weight"] = table

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Takes the rows of a whole table."""
        table = state_dict.get(f"{prefix}weight")
        if table is None:
            missing_keys.append(f"{prefix}weight")
            return
        with torch.no_grad():
            self.frozen.copy_(table)
            self.rows.copy_(table[self.ids.to(table.device)])


_saved_tables: WeakKeyDictionary[TrainableRows, ref[torch.Tensor]] = WeakKeyDictionary()
"""The whole table that each module gave to a state dict last."""


def is_plain_table(table: Any) -> bool:
    """Whether a module is a table of token embeddings without scaling, norms or sparse gradients."""
    if not isinstance(table, nn.Embedding) or type(table).forward is not nn.Embedding.forward:
        return False
    return table.max_norm is None and not table.scale_grad_by_freq and not table.sparse


def tables_of(model: nn.Module) -> Iterator[TrainableRows]:
    """The tables of a model of which only some rows are trained."""
    for module in model.modules():
        if isinstance(module, TrainableRows):
            yield module


def saved_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of a model by name as it saves them: of each table the whole, once."""
    tables = {name: module for name, module in model.named_modules() if isinstance(module, TrainableRows)}
    for name, table in tables.items():
        yield f"{name}.weight", table.frozen
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if name.rpartition(".")[0] not in tables:
            yield name, tensor


def train_rows(encoders: Sequence[Any], ids: torch.Tensor) -> None:
    """Trains only some rows of the table of an encoder.

    Args:
        encoders: The encoder and its momentum copy, if it has one; they share what is frozen, if it is equal.
        ids: The token ids whose rows are trained.
    """
    first: TrainableRows | None = None
    for encoder in encoders:
        rows = TrainableRows(encoder.get_input_embeddings(), ids)
        if first is None:
            first = rows
        elif torch.equal(rows.frozen, first.frozen):
            rows.frozen = first.frozen
        encoder.set_input_embeddings(rows)


def restore_table(encoder: Any) -> None:
    """Gives an encoder a plain table of token embeddings again."""
    for rows in list(islice(tables_of(encoder), 1)):  # T5 has it under two names
        weight = rows.weight
        tokens, width = weight.shape
        table = nn.Embedding(tokens, width, padding_idx=rows.padding_idx, _weight=weight)
        table.requires_grad_(rows.rows.requires_grad)
        encoder.set_input_embeddings(table)
