"""Losses of a student's sentence embeddings against those of a teacher."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from hf_xlsr.losses.in_batch import precise, sum_over_blocks
from hf_xlsr.utils.plugins import Registry

Distance = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From embeddings of the student and of the teacher, `(rows, width)` each and in float32, to a scalar."""


def _cosine_distance(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    return 1.0 - F.cosine_similarity(student, teacher, dim=-1).mean()


TEACHER_LOSSES: Registry[Distance] = Registry(
    "teacher loss", "losses", {"cosine": _cosine_distance, "mse": F.mse_loss}
)
"""The losses that `teacher_loss` of a configuration or a recipe can name."""


def register_teacher_loss(name: str) -> Callable[[Distance], Distance]:
    """A decorator: a configuration or a recipe can name a loss of a student against its teacher, as `teacher_loss: NAME`.

    The function takes the embeddings of the student and those of the teacher, which have no gradient, `(rows, width)`
    each, in float32 and without autocast, and gives a scalar: a mean over rows, so that weights keep their meaning.

    Args:
        name: Name of the loss.
    """

    def register(function: Distance) -> Distance:
        TEACHER_LOSSES.add(name, function, function)
        return function

    return register


def teacher_loss(student: torch.Tensor, teacher: torch.Tensor, *, kind: str = "cosine") -> torch.Tensor:
    r"""Distance of each student embedding from the teacher's (Reimers and Gurevych, 2020).

    ```math
    L_{cos} = \frac{1}{n} \sum_j 1 - \cos(u_j, t_j) \qquad
    L_{mse} = \frac{1}{n d} \sum_j \lVert u_j - t_j \rVert^2
    ```

    A translation learns from the teacher's embedding of its source, as in the paper. `student` is `u`, and `teacher`,
    without gradient, `t`: `(rows, width)` each. `kind` is `cosine`, `mse` (the paper), or the name of a plug-in's loss.

    Examples:
        >>> eye = torch.eye(2)
        >>> teacher_loss(3 * eye, eye), teacher_loss(3 * eye, eye, kind="mse")
        (tensor(0.), tensor(2.))
    """
    distance = TEACHER_LOSSES.find("kind", kind)
    student, teacher = precise(student, teacher)
    with torch.autocast(student.device.type, enabled=False):
        return distance(student, teacher)


def matching_loss(
    source: torch.Tensor, target: torch.Tensor, teacher: torch.Tensor, *, temperature: float = 0.05
) -> torch.Tensor:
    r"""Divergence of the student's similarities in a batch from the teacher's.

    ```math
    L_{match} = \frac{1}{n} \sum_j \mathrm{KL}\left(\mathrm{softmax}_k \frac{\cos(t_j, t_k)}{\tau} \,\Big\|\,
    \mathrm{softmax}_k \frac{\cos(u_j, v_k)}{\tau}\right)
    ```

    It stands beside `teacher_loss`: sentences that the teacher holds close are not pushed apart as far as others. The
    widths of student and teacher may differ.

    Args:
        source: `u`, `(batch, width)`.
        target: `v`, their translations, `(batch, width)`.
        teacher: `t`, the teacher's embeddings of the sources, `(batch, teacher_width)`, without gradient.
        temperature: Divides the cosines of both.

    Examples:
        >>> vectors = torch.randn(4, 8)
        >>> bool(matching_loss(vectors, vectors, vectors).abs() < 1e-5)
        True
    """
    source, target, teacher = precise(source, target, teacher, normalize=True)

    def divergence(rows: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        expected = F.log_softmax(taught @ teacher.T / temperature, dim=-1)
        predicted = F.log_softmax(rows @ target.T / temperature, dim=-1)
        return F.kl_div(predicted, expected, reduction="sum", log_target=True)

    with torch.autocast(source.device.type, enabled=False):
        return sum_over_blocks(divergence, source, teacher, columns=len(source)) / len(source)
