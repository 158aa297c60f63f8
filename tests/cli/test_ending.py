"""A verb that a signal or an unexpected error ends: one sentence, the status of a shell, and nothing half written."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing

from hf_xlsr.cli import encode, main
from hf_xlsr.cli.app import RUST
from hf_xlsr.cli.ending import Signals
from hf_xlsr.utils.files import write_text

WORDS = ("debias", "fit", "model", "--texts", "en=a.txt", "--output", "out")


def verb_that(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Makes `debias fit` do something else once its options are read."""

    def read_texts(*arguments: Any) -> Any:
        action()

    monkeypatch.setattr(encode, "read_texts", read_texts)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def write() -> None:
        os.kill(os.getpid(), number)
        write_text("out", "written")

    verb_that(monkeypatch, write)
    default = Signals.HANDLERS[number]
    before = signal.signal(number, default)  # whoever started the tests may ignore it
    try:
        assert main(WORDS) == status
        assert signal.getsignal(number) == default
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == f"hf-xlsr: stopped by {number.name}.\n"
    assert os.listdir(tmp_path) == []


def test_signal_that_becomes_another_error(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted_import() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    verb_that(monkeypatch, interrupted_import)
    assert main(WORDS) == 143
    assert capsys.readouterr().err == "hf-xlsr: stopped by SIGTERM.\n"


def test_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A shell starts commands in the background so that Ctrl-C does not reach them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        verb_that(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT) or exit(7))
        with pytest.raises(SystemExit):
            main(WORDS)
    finally:
        signal.signal(signal.SIGINT, before)


def fail() -> None:
    raise RuntimeError("hf_" + "Secret" * 6 + " and\nmore")


def test_unexpected_error_goes_to_a_log(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    verb_that(monkeypatch, fail)
    error = failing(capsys, *WORDS)
    (log,) = tmp_path.glob("*.log")
    assert error.startswith("hf-xlsr: unexpected RuntimeError (")
    assert error.endswith(f"its traceback is in {log}.")
    text = log.read_text("utf-8")
    assert "in fail" in text
    assert "hf_Secret" not in error + text
    assert log.stat().st_mode & 0o077 == 0


PanicException = type("PanicException", (BaseException,), {"__module__": RUST})


def test_panic_of_a_tokenizer_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def panic() -> None:
        raise PanicException("index out of bounds")

    verb_that(monkeypatch, panic)
    assert failing(capsys, *WORDS).startswith(
        "hf-xlsr: unexpected PanicException (index out of bounds); its traceback"
    )


def test_unexpected_error_is_raised_for_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_XLSR_DEBUG", "1")
    verb_that(monkeypatch, fail)
    with pytest.raises(RuntimeError, match="Secret"):
        main(WORDS)


def test_full_disk_of_unknown_place(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def write() -> None:
        raise RuntimeError("no space") from OSError(28, "No space left on device")

    verb_that(monkeypatch, write)
    assert tempfile.gettempdir() in failing(capsys, *WORDS)
