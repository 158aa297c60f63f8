"""The verbs `push` and `card` of the `hf-xlsr` command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError


def configure_push(parser: argparse.ArgumentParser) -> None:
    """Adds the words and options of `hf-xlsr push`."""
    parser.add_argument("run", help="folder of a finished run")
    parser.add_argument("--repo", required=True, metavar="OWNER/NAME", help="repository of the encoder")
    parser.add_argument("--private", action="store_true", help="make it private; the training state always is")
    parser.add_argument(
        "--what", default="encoder", help="encoder, training (the state, to OWNER/NAME-training) or all"
    )
    parser.add_argument("--adapters", action="store_true", help="the LoRA adapters alone in place of the encoder")
    parser.add_argument("--exist-ok", action="store_true", help="write to a repository that was not pushed from here")
    parser.add_argument("--message", help="of the commit")
    parser.epilog = (
        "The access token is that of HF_TOKEN or of `hf auth login`. A call that was interrupted sends, made again, what "
        "is missing."
    )


def push(options: argparse.Namespace, rest: list[str]) -> int:
    """Runs `hf-xlsr push`."""
    from hf_xlsr.runs.publish import push_run

    pushed = push_run(
        options.run,
        options.repo,
        what=options.what,
        adapters=options.adapters,
        private=options.private,
        exist_ok=options.exist_ok,
        message=options.message,
    )
    for one in pushed:
        shown = "private" if one.private else "public"
        print(f"{one.url} ({shown}): {one.files} files, {one.size / 1e6:.1f} MB")
    return 0


def configure_card(parser: argparse.ArgumentParser) -> None:
    """Adds the words and options of `hf-xlsr card`."""
    parser.add_argument("run", help="folder of a finished run")
    parser.add_argument("--output", help="file; the run's own cards, README.md and model/README.md, when absent")
    parser.add_argument("--license", help="of the weights, by its name on the Hub, e.g. apache-2.0")
    parser.add_argument("--base-model", nargs="+", metavar="OWNER/NAME", help="models on the Hub that it started from")
    parser.add_argument("--datasets", nargs="+", metavar="OWNER/NAME", help="data sets on the Hub that it learnt from")


def card(options: argparse.Namespace, rest: list[str]) -> int:
    """Runs `hf-xlsr card`."""
    from hf_xlsr.evaluation.report import check_writable
    from hf_xlsr.runs.card import card_of_run
    from hf_xlsr.runs.folder import RunFolder

    folder = RunFolder(options.run)
    outputs = [Path(options.output)] if options.output else [folder.card, folder.model / "README.md"]
    for output in outputs:
        check_writable(output, "--output" if options.output else "the card")
    given = {"license": options.license, "base_model": options.base_model, "datasets": options.datasets}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value}
    text = card_of_run(options.run, chosen)
    for output in outputs:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text, "utf-8")
        except OSError as error:
            raise XlsrError(f"card {output} cannot be written ({error.strerror}); give another place.") from error
        print(output)
    return 0
