"""Label distributions of the sentence-level generative tasks.

Rows are a stack, first every source sentence, then every target sentence in the same order: rows `i` and
`(i + batch) % (2 * batch)` are translations.
"""

from __future__ import annotations

import torch

from hf_xlsr.losses.cross_entropy import IGNORE
from hf_xlsr.utils.errors import XlsrError, require_choice


def swap_sides(stacked: torch.Tensor) -> torch.Tensor:
    """Gives each row of a `(2 * batch, ...)` stack its translation's row.

    Examples:
        >>> swap_sides(torch.tensor([1, 2, 10, 20]))
        tensor([10, 20,  1,  2])
    """
    return stacked.roll(len(stacked) // 2, 0)


def merge_duplicates(
    ids: torch.Tensor, probs: torch.Tensor, *, keep_first: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted ids and mass of each row, `(rows, targets)`, the mass of a repeated token at its first entry alone.

    It is the sum of the token's entries, or with `keep_first` the first. Entries with mass 0 are padding.
    """
    # Padding must not precede a real entry of the same token, or it would count as its first occurrence.
    order = (ids * 2 + (probs == 0)).argsort(dim=1, stable=True)
    ids = ids.gather(1, order)
    probs = probs.gather(1, order)

    is_first = torch.ones_like(ids, dtype=torch.bool)
    is_first[:, 1:] = ids[:, 1:] != ids[:, :-1]
    if keep_first:
        return ids, probs * is_first

    run = is_first.long().cumsum(1) - 1  # index of the run of equal tokens that an entry belongs to
    sums = torch.zeros_like(probs).scatter_add_(1, run, probs)
    return ids, sums.gather(1, run) * is_first


def generative_labels(
    original_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    masked_ids: torch.Tensor | None = None,
    *,
    task: str = "ugt",
    label_mode: str = "accumulate",
    mask_token_id: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Label distributions `q` of the sentence-level generative tasks, as sparse rows.

    `xtr` (equations 2, 3) puts `N_w / \lVert S' \rVert` on each token of the translation `S'`. `smlm` (equation
    1) puts all mass on the masked token, on both sides of the pair. `ugt` (equation 4) halves it: on the side where token
    `t` was masked, 1/2 on `t` and 1/2 spread over the translation; on the other side it is `xtr`.

    `ugt` and `xtr` have two variants, the label modes:

    - `accumulate` (the paper's equations): mass is added, so every row sums to 1; the unmasked side has the full sentence
      as its label, the masked token included, and nothing for `<mask>`.
    - `set` (the released code): each distinct token is *set* to `1 / length` (half of it with `t`), so repeated tokens
      count once, a masked token that also occurs in the translation loses its 1/2, and the unmasked side has `<mask>` in
      place of the masked token.

    Args:
        original_ids: Tokens before masking, `(2 * batch, length)`, sources over targets.
        attention_mask: 1 for tokens that count, `(2 * batch, length)`.
        masked_ids: The masked token of each row, -100 where the row was not masked, `(2 * batch,)`. Not used by `xtr`.
        task: `ugt`, `xtr` or `smlm`.
        label_mode: `accumulate` or `set`.
        mask_token_id: Id of `<mask>`; required by `set`, which puts mass on it.

    Returns:
        Token ids and mass, both `(2 * batch, length + 1)`; every token has mass once.

    Examples:
        >>> pair = torch.tensor([[7, 1, 1, 2], [8, 9, 0, 0]])          # o = [t, a, a, b] is row 0's translation below
        >>> mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        >>> ids, mass = generative_labels(pair, mask, torch.tensor([-100, 8]))
        >>> mass.sum(1)
        tensor([1., 1.])
    """
    require_choice("task", task, ("ugt", "xtr", "smlm"))
    require_choice("label_mode", label_mode, ("accumulate", "set"))
    dtype = torch.float64 if original_ids.device.type != "mps" else torch.float32
    if masked_ids is None:
        masked_ids = torch.full((len(original_ids),), IGNORE, device=original_ids.device)
    is_masked = masked_ids != IGNORE
    if task == "smlm":
        # Equation 1: both sides predict the token that was masked on one of them.
        token = torch.where(is_masked, masked_ids, swap_sides(masked_ids)).unsqueeze(1)
        return token.clamp(min=0), (token != IGNORE).float()

    translation = swap_sides(original_ids)
    counts = swap_sides(attention_mask).to(dtype)
    share = counts / counts.sum(1, keepdim=True).clamp(min=1.0)  # N_w / ||S'|| of each token
    masked_share = share.new_zeros(len(share), 1)
    if task == "ugt":
        share = torch.where(is_masked.unsqueeze(1), share / 2, share)
        masked_share = is_masked.to(dtype).unsqueeze(1) / 2

    if task == "ugt" and label_mode == "set":
        if mask_token_id is None:
            raise XlsrError("label_mode 'set' needs `mask_token_id`.")
        # For the row whose translation was masked, <mask> replaces one occurrence of the masked token.
        masked_there = swap_sides(masked_ids).unsqueeze(1)
        occurs = (translation == masked_there) & (counts > 0)
        is_first = occurs & (occurs.long().cumsum(1) == 1)
        translation = translation.masked_fill(is_first, mask_token_id)

    # Tokens of the translation come first: in `set` they overwrite the masked token's 1/2.
    ids = torch.cat([translation, masked_ids.clamp(min=0).unsqueeze(1)], 1)
    probs = torch.cat([share, masked_share], 1)
    ids, probs = merge_duplicates(ids, probs, keep_first=label_mode == "set")
    return ids, probs.float()
