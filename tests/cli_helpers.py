"""What tests of the command share."""

from __future__ import annotations

import pytest

from hf_xlsr.cli import main


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence that a command line ends in."""
    assert main(arguments) == 1
    written = capsys.readouterr().err.strip()
    error = written.splitlines()[-1]  # progress bars may stand above
    assert error.startswith("hf-xlsr")
    assert "Traceback" not in written
    return error
