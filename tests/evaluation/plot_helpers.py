"""What tests of pictures share: a look at the pixels and at where texts lie."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def assert_a_picture(path: Path) -> None:
    pixels = imread(path)[:, :, :3]
    height, width = pixels.shape[:2]
    assert 200 < height < 3500 and 700 < width < 3500
    drawn = (pixels < 0.95).any(axis=2).mean()
    assert 0.01 < drawn < 0.85  # neither blank nor covered


def extents(figure: Figure, texts: Iterable[Text]) -> list[Bbox]:
    """Where texts lie, in pixels; the layout of the saved picture stays."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    return [text.get_window_extent(renderer) for text in texts if text.get_text()]


def assert_apart(boxes: list[Bbox]) -> None:
    for number, box in enumerate(boxes):
        for other in boxes[number + 1 :]:
            overlap = Bbox.intersection(box, other)
            # Boxes hold the line's whole height: letters of neighbours are apart where boxes touch by a pixel.
            assert overlap is None or min(overlap.width, overlap.height) < 2


def assert_inside(figure: Figure, boxes: list[Bbox]) -> None:
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
