"""The verb `submit` of the `hf-xlsr` command."""

from dataclasses import dataclass
from typing import Annotated

import typer

from hf_xlsr.cli.options import MODEL
from hf_xlsr.cli.report import print_facts
from hf_xlsr.runs.own_data import comma_separated
from hf_xlsr.utils.extras import require_package


@dataclass(kw_only=True)
class SubmitOptions:
    """Options of `hf-xlsr submit`."""

    results: Annotated[
        str, typer.Argument(help="Folder of hf-xlsr evaluate --protocol mteb --cache, or the file of its --output.")
    ]
    name: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Id of the model on the Hub.")]
    revision: Annotated[str, typer.Option(metavar="COMMIT", help="Commit of the model on the Hub.")]
    output: Annotated[str, typer.Option(metavar="DIR", help="Folder for results/ and the model's metadata.")]
    model: Annotated[str | None, typer.Option(help=f"The model that was measured. {MODEL}", show_default=False)] = None
    benchmark: Annotated[
        str | None,
        typer.Option(help='List what is missing of a benchmark of mteb, such as "MTEB(Multilingual, v2)".'),
    ] = None
    release_date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Date of the commit.")] = None
    adapted_from: Annotated[
        str | None, typer.Option(metavar="ID", help="Model that it was made from; by default as its card says.")
    ] = None
    training_code: Annotated[str | None, typer.Option(metavar="URL", help="Public training code.")] = None
    training_data: Annotated[str | None, typer.Option(metavar="URL", help="Public training data.")] = None
    training_datasets: Annotated[
        str | None, typer.Option(help="Datasets that it was trained on, as mteb calls them, with commas.")
    ] = None


def submit(options: SubmitOptions) -> None:
    """Make results of mteb's tasks ready for its leaderboard.

    Example: hf-xlsr submit results --model MODEL --name me/model --revision COMMIT --output out --release-date 2026-01-31
    """
    require_package("mteb")
    from hf_xlsr.evaluation.mteb.submission import write_submission
    from hf_xlsr.runs.inputs import check_named

    check_named(options.model, {"RESULTS": [options.results]}, outputs=[options.output])

    submission = write_submission(
        options.results,
        options.output,
        name=options.name,
        revision=options.revision,
        model=options.model,
        benchmark=options.benchmark,
        facts={
            "release_date": options.release_date,
            "adapted_from": options.adapted_from,
            "public_training_code": options.training_code,
            "public_training_data": options.training_data,
            "training_datasets": set(comma_separated(options.training_datasets)),
        },
    )

    incomplete = {task: f"{len(absent)} scores, first {absent[0]}" for task, absent in submission.incomplete.items()}
    print_facts(
        {
            "results": str(submission.folder),
            "metadata": str(submission.code),
            "tasks": submission.tasks,
            "without all scores": incomplete,
            "missing of the benchmark": submission.missing,
            "unknown fields of the metadata": submission.empty,
        }
    )
