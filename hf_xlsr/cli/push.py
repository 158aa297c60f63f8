"""The verb `push` of the `hf-xlsr` command."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hf_xlsr.cli.options import MODEL
from hf_xlsr.runs.own_data import LANGUAGES, comma_separated
from hf_xlsr.utils.console import ask, say
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.export.corpus_card import CorpusMetadata
    from hf_xlsr.export.hub import RepoUpload

PAIRS: dict[str, Any] = {"rich_help_panel": "Pairs"}
OF_PAIRS = ("license", "license_name", "license_link", "sources", "languages", "title", "output")


@dataclass(kw_only=True)
class PushOptions:
    """Options of `hf-xlsr push`."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|PAIRS",
            help=f"{MODEL} Or a file of pairs that mine, score, filter or clean wrote, which becomes a dataset.",
        ),
    ]
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Repository of the encoder, or of the dataset.")]
    private: Annotated[bool, typer.Option("--private", help="Make it private; the training state always is.")] = False
    what: Annotated[
        Literal["encoder", "training", "all"],
        typer.Option(help="What to push of a model; the training state goes to OWNER/NAME-training."),
    ] = "encoder"
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Write to a repository that was not pushed from here.")
    ] = False
    message: Annotated[str | None, typer.Option(help="Message of the commit.")] = None
    yes: Annotated[bool, typer.Option("--yes", help="Send without a question.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print files and card, and send nothing.")] = False
    license: Annotated[
        str | None,
        typer.Option(help="Licence of the pairs by its name on the Hub, e.g. cc-by-sa-4.0; required.", **PAIRS),
    ] = None
    license_name: Annotated[str | None, typer.Option(help="Its name, of --license other.", **PAIRS)] = None
    license_link: Annotated[str | None, typer.Option(help="Its address, of --license other.", **PAIRS)] = None
    sources: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LICENCE",
            help='Where the texts are from, each with its licence or terms, e.g. "Wikipedia=cc-by-sa-4.0"; required.',
            **PAIRS,
        ),
    ] = None
    languages: Annotated[
        str | None, typer.Option(help=f"{LANGUAGES} By default as stored with the pairs.", **PAIRS)
    ] = None
    title: Annotated[str | None, typer.Option(help="Title of the card; by default NAME.", **PAIRS)] = None
    output: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write the files to this new folder; with --dry-run.", **PAIRS),
    ] = None

    @property
    def is_pairs(self) -> bool:
        """Whether a file is pushed; models are folders, or on the Hub."""
        return Path(self.model).expanduser().is_file()

    def check_kind(self) -> None:
        """Raises for options of pairs with a model, and the other way round."""
        if self.output and not self.dry_run:
            raise XlsrError("--output needs --dry-run: it writes the files to look at them, and sends nothing.")
        if self.is_pairs:
            if self.what != "encoder":
                raise XlsrError(f"--what {self.what} is for models, but '{self.model}' is a file of pairs.")
            return
        for field in fields(self):
            if field.name in OF_PAIRS and getattr(self, field.name):
                option = field.name.replace("_", "-")
                raise XlsrError(f"--{option} needs a file of pairs: there is no file '{self.model}'.")

    def metadata(self) -> "CorpusMetadata":
        """What the user states of pairs, checked."""
        from hf_xlsr.export.corpus_card import CorpusMetadata

        if not self.license:
            raise XlsrError("Pairs need --license, the licence that you give them, e.g. --license cc-by-sa-4.0.")
        if not self.sources:
            raise XlsrError('Pairs need --sources, each with its licence, e.g. --sources "Wikipedia=cc-by-sa-4.0".')
        sources = {}
        for source in self.sources:
            # An address may hold an equals sign: on either side, the rest is the address.
            is_address = source.startswith(("http://", "https://"))
            name, _, licence = source.rpartition("=") if is_address else source.partition("=")
            if not name.strip() or not licence.strip():
                raise XlsrError(f"--sources must be NAME=LICENCE, got '{source}'.")
            if name.strip() in sources:
                raise XlsrError(f"--sources names '{name.strip()}' twice. Give each source once, with all its terms.")
            sources[name.strip()] = licence.strip()
        return CorpusMetadata(
            self.license,
            sources,
            languages=comma_separated(self.languages) or None,
            license_name=self.license_name,
            license_link=self.license_link,
            title=self.title or "",
        )

    def planned(self) -> "AbstractContextManager[list[RepoUpload]]":
        """What would be sent to each repository."""
        if not self.is_pairs:
            from hf_xlsr.runs.publish import uploads_of

            return uploads_of(self.model, self.repo, what=self.what, private=self.private)

        from hf_xlsr.cli.options import new_folder
        from hf_xlsr.export.corpus import corpus_uploads
        from hf_xlsr.utils.files import refuse_overwriting

        folder = None
        if self.output:
            refuse_overwriting([self.output], [self.model], "--output")
            folder = new_folder(self.output)
        return corpus_uploads(self.model, self.repo, self.metadata(), private=self.private, folder=folder)


def push(options: PushOptions) -> int:
    """Push a run, a model or pairs to the Hub, after a question.

    The access token is that of HF_TOKEN or of `hf auth login`. The same command resumes an interrupted upload.

    Pairs become a dataset in Parquet, with a card of what is known about them, plots and the report page.

    Example: hf-xlsr push mined.tsv --repo me/en-de --license cc0-1.0 --sources "Wikipedia=cc-by-sa-4.0" --dry-run
    """
    from hf_xlsr.export.hub import push_uploads

    options.check_kind()
    with options.planned() as uploads:
        for upload in uploads:
            _print_upload(upload, with_card=options.dry_run)
        if options.dry_run:
            return 0

        unasked = "push asks for confirmation, but standard input is not a terminal. Add --yes to send without asking."
        if not options.yes and not ask("Send these files?", unasked):
            say("Nothing was sent.")
            return 1

        for result in push_uploads(uploads, exist_ok=options.exist_ok, message=options.message):
            visibility = "private" if result.private else "public"
            say(f"{result.url} ({visibility}): {result.files} files, {result.size / 1e6:.1f} MB")
    return 0


def _print_upload(upload: "RepoUpload", *, with_card: bool) -> None:
    """Prints what would be sent to a repository."""
    from hf_xlsr.export.hub import CARD
    from hf_xlsr.utils.redaction import redact_tokens

    visibility = "private" if upload.private else "public"
    say(f"To {redact_tokens(upload.repo)} ({visibility}): {len(upload.files) + 1} files, {upload.size / 1e6:.1f} MB")
    sizes = {CARD: len(upload.card.encode())}
    sizes |= {name: path.stat().st_size for name, path in upload.files.items()}
    for name, size in sizes.items():
        say(f"  {name}  {size:,} bytes")
    if upload.left_out:
        say(f"Not sent, as {upload.left_out_because}: {', '.join(upload.left_out)}.")
    if with_card:
        say(f"\n{redact_tokens(upload.card)}")
