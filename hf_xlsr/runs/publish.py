"""Pushing a run to the Hub: the encoder with its card, and the private training state."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch
from huggingface_hub import ModelCardData
from safetensors import SafetensorError
from safetensors.torch import load_file

from hf_xlsr.encoders.assembly import MODULES_FILE
from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.reading import find_model, named_folder, read_saved
from hf_xlsr.export.card import card_for, code, one_line, part_card
from hf_xlsr.export.hub import CARD, RepoUpload, UploadResult, check_repo, push_uploads
from hf_xlsr.export.model_card import PLOTS, hub_languages
from hf_xlsr.export.old_names import rewritten_files
from hf_xlsr.export.published_files import CHECKPOINT_FILES, Listing, list_files, named_files
from hf_xlsr.export.sample_texts import sample_texts
from hf_xlsr.export.sentence_transformer import save_export
from hf_xlsr.runs.card import card_of_model, licence_of
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.recipe import read_run
from hf_xlsr.trainers.checkpoints import last_whole_checkpoint
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.files import write_json

LOGS = ("training/recipe.json", "training/log.json", "training/seconds.json", "results.json", "results.npz")
TOLERANCE = 1e-4  # of embeddings of length 1
PARTS = ("encoder", "training", "all")
TRAINING_TAG = "hf-xlsr-training-state"
TRAINING_SUFFIX = "-training"


def push_run(
    run: str | Path,
    repo: str,
    *,
    what: str = "encoder",
    private: bool = False,
    exist_ok: bool = False,
    message: str | None = None,
) -> list[UploadResult]:
    """Pushes what a finished run left, or the encoder of a saved model or an export, without a question.

    The encoder goes to `repo`: the sentence-transformers folder, its card, its plots. The training state goes to
    `repo` with `-training` appended, which is always private. The same call resumes an interrupted upload.

    Args:
        what: `encoder`, `training` or `all`.
        private: Make the encoder's repository private too.
        exist_ok: Write to a repository that was not pushed from here.

    Raises:
        XlsrError: A folder has links (`hf_xlsr.export.published_files`), or the Hub refuses.
    """
    with uploads_of(run, repo, what=what, private=private) as uploads:
        return push_uploads(uploads, exist_ok=exist_ok, message=message)


@contextmanager
def uploads_of(
    run: str | Path, repo: str, *, what: str = "encoder", private: bool = False
) -> Iterator[list[RepoUpload]]:
    """What `push_run` would send to each repository; some of the files are temporary."""
    check_repo(repo)
    require_choice("what", what, PARTS)

    folder = RunFolder(run)
    uploads: list[RepoUpload] = []
    with tempfile.TemporaryDirectory() as scratch:
        if what != "training":
            if what == "all" or folder.recipe.is_file():
                uploads.append(_encoder(folder, repo, private, Path(scratch)))
            else:
                uploads.append(_model(str(run), repo, private, Path(scratch)))
        if what != "encoder":
            uploads.append(_training(folder, repo))
        yield uploads


def _encoder(folder: RunFolder, repo: str, private: bool, scratch: Path) -> RepoUpload:
    plots = named_files(folder.path, PLOTS)
    read_run(folder)  # an error for other folders
    if not (folder.model / CARD).is_file():
        raise XlsrError(
            f"run '{folder.path}' has not finished: {folder.model / CARD} is missing; resume it with hf-xlsr train."
        )
    listing = list_files(folder.model, root=folder.path)
    _check_export(folder)
    listing.files.update(plots)
    return _upload(repo, listing, folder.model, private, scratch)


def _check_export(folder: RunFolder) -> None:
    """Raises unless the model of a run loads, and gives the embeddings of the trained weights, if these are there."""
    weights = [home for home in (folder.merged, folder.final) if any(home.glob("*.safetensors"))]
    is_export = (folder.model / MODULES_FILE).is_file()
    if is_export:
        exported = load_encoder(str(folder.model), "cpu")

    if not weights:
        return
    if not is_export:
        _check_weights(folder.model, weights[0])
        return

    place = find_model(folder.path, trained=True)
    trained = read_saved(place).detached()
    model = trained.assemble()
    for route, part in trained.parts.items():
        texts = list(chain.from_iterable(sample_texts(part.tokenizer, route).values()))

        expected = unit_length(model.encode(texts, task=route or None))
        difference = abs(unit_length(exported.encode(texts, task=route or None)) - expected).max()
        if not difference <= TOLERANCE:
            raise XlsrError(
                f"'{folder.model}' must give the embeddings of '{place.path}', got a difference of {difference:.1e}. "
                "Remove it and run hf-xlsr train again, which exports it anew."
            )


def _check_weights(model: Path, trained: Path) -> None:
    """Raises unless the weights of a classifier or translation model equal the trained ones."""
    for file in model.glob("*.safetensors"):
        try:
            weights = load_file(file)
            expected = load_file(trained / file.name)
            is_equal = all(torch.equal(weights[name], expected[name]) for name in expected)
        except (OSError, SafetensorError, KeyError) as error:
            raise XlsrError(f"'{file}' cannot be read, or differs from '{trained}': {error!r}.") from error
        if not is_equal:
            raise XlsrError(f"'{file}' must have the weights of '{trained / file.name}'.")


def _model(name: str, repo: str, private: bool, scratch: Path) -> RepoUpload:
    """A model without a run: of a saved model, its export."""
    home = named_folder(name)
    folder = Path(find_model(name).path)
    listing = Listing()
    if home.is_dir():
        listing = list_files(folder, root=home)
    card = listing.files.get(CARD)
    text = card.read_text("utf-8") if card else card_of_model(name)
    if not (folder / MODULES_FILE).is_file():
        folder = scratch / "model"
        save_export(load_encoder(name, "cpu"), folder)
        listing = list_files(folder)
    return _upload(repo, listing, folder, private, scratch, text)


def _upload(
    repo: str,
    listing: Listing,
    folder: Path,
    private: bool,
    scratch: Path,
    card: str | None = None,
) -> RepoUpload:
    """A model with the names of older versions in its files; changed ones are in `scratch`."""
    files = listing.files
    written_card = files.pop(CARD, None)
    if card is None:
        assert written_card is not None
        card = written_card.read_text("utf-8")
    for name, content in rewritten_files(folder).items():
        if name not in files:  # hidden
            continue
        files[name] = scratch / "rewritten" / name
        files[name].parent.mkdir(parents=True, exist_ok=True)
        write_json(files[name], content)
    return RepoUpload(repo, card_for(card, repo), files, private, left_out=listing.left_out)


def _training(folder: RunFolder, repo: str) -> RepoUpload:
    logs = named_files(folder.path, LOGS)
    recipe = read_run(folder).recipe
    newest = last_whole_checkpoint(folder.training, folder.processes)
    if newest is None:
        raise XlsrError(f"run '{folder.path}' has no complete checkpoint to push.")

    weights = [path for path in folder.training.glob("checkpoint-*") if _step(path) <= _step(newest)]
    weights += filter(Path.is_dir, (folder.final, folder.merged))
    listing = Listing(logs)
    for path in weights:
        more = list_files(path, CHECKPOINT_FILES, root=folder.path, prefix=f"training/{path.name}")
        listing.files.update(more.files)
        listing.left_out.extend(more.left_out)

    name = one_line(recipe.name)
    card = part_card(
        ModelCardData(language=hub_languages(recipe.languages), license=licence_of(recipe), tags=[TRAINING_TAG]),
        title=f"{name}: training state",
        paragraphs=[
            f"Checkpoints to resume a run of the recipe {code(name)} of hf-xlsr, with optimiser, queues and momentum "
            f"encoders, and the final weights. The encoder for use is in {code(repo)}.",
            "Download it into the folder of the run and run the same command; the data are prepared again.",
        ],
        example=f"hf download {repo}{TRAINING_SUFFIX} --local-dir RUN\nhf-xlsr train RECIPE --output_dir RUN",
        language="sh",
    )
    return RepoUpload(
        repo + TRAINING_SUFFIX,
        card,
        listing.files,
        private=True,
        tag=TRAINING_TAG,
        replaces=("*",),
        left_out=listing.left_out,
    )


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rsplit("-", 1)[1]
    return int(number) if number.isdigit() else 1 << 62
