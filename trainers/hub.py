"""`push_to_hub` of trainers: the exported encoder, without training state."""

from __future__ import annotations

import copy
import glob
import logging
import tempfile
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from sentence_transformers import SentenceTransformer
from transformers import Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils.hub import PushInProgress

from hf_xlsr.evaluation.results import Results
from hf_xlsr.export.card import PLACE, card_for
from hf_xlsr.export.hub import CARD, WEIGHTS, hub_errors
from hf_xlsr.export.model_card import CardMetadata, card_text
from hf_xlsr.export.old_names import add_old_names
from hf_xlsr.export.published_files import list_files
from hf_xlsr.export.sentence_transformer import save_export
from hf_xlsr.trainers.adapters import base_model, merged
from hf_xlsr.trainers.card import trainer_facts
from hf_xlsr.utils.access_tokens import check_no_token
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import write_text
from hf_xlsr.utils.redaction import redact_tokens

logger = logging.getLogger(__name__)


class SlimPushes(Trainer):
    """`Trainer` whose `push_to_hub` uploads the exported encoder.

    At the end, at each save (`hub_strategy="every_save"`) and on `push_to_hub`, the live model is exported and uploaded
    to `hub_model_id` with its card. Checkpoints are never uploaded; `hf-xlsr push --what training` uploads the state of a
    run to a private repository. Uploaded files contain no token.

    Attributes:
        card: What only its author knows of the model, such as `CardMetadata(license="apache-2.0")`.
        given_rows: Training rows by task, as users gave them.
        measured: Metrics and results of protocols that `evaluate` measured in this training, by step.
    """

    card = CardMetadata()
    args: Any
    push_in_progress: Any
    given_rows: dict[str, Any]
    measured: dict[int, tuple[dict[str, float], Results]]

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Creates the repository."""
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            raise XlsrError(
                f"hub_strategy '{self.args.hub_strategy.value}' publishes queues and optimiser; use 'end'."
            )
        with hub_errors(self.args.hub_model_id or Path(self.args.output_dir).name):
            super().init_hf_repo(token=token, private=private)

    def push_to_hub(  # type: ignore[override]  # without arguments of a card of Trainer
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
    ) -> Any:
        """Exports and uploads the model with its card; by default to `hub_revision` with `hub_token`.

        Returns the commit, or without `blocking` its future; None in all processes but the main one.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self._check_whole_weights()
        if not self.is_world_process_zero():
            return None

        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self._finish_current_push()

        repo = str(self.hub_model_id)
        folder = tempfile.TemporaryDirectory()
        encoder = export_trainer(self, Path(folder.name))
        self._write_card(Path(folder.name), repo, encoder, place=repo)

        with hub_errors(repo):
            job = HfApi(token=token or self.args.hub_token).upload_folder(
                repo_id=repo,
                folder_path=folder.name,
                commit_message=redact_tokens(commit_message or "Push"),
                revision=revision or self.args.hub_revision,
                delete_patterns=list(WEIGHTS),
                allow_patterns=list(map(glob.escape, list_files(Path(folder.name)).files)),
                run_as_future=True,
            )
            job.add_done_callback(lambda _: folder.cleanup())
            jobs: Any = [job]
            self.push_in_progress = PushInProgress(jobs)
            if blocking:
                return job.result()
        job.add_done_callback(partial(_log_error, repo))
        return job

    def to_sentence_transformer(self) -> SentenceTransformer:
        """A copy of the live model in stock modules of sentence-transformers; adapters are merged."""
        trainer: Any = self
        model = base_model(merged_copy(self))
        encoder: SentenceTransformer = model.to_sentence_transformer(trainer.text_tokenizers())
        return encoder

    def save_sentence_transformer(self, path: str | Path) -> None:
        """Writes a folder with a card that `SentenceTransformer(path)` loads without this package.

        Every process must call.
        """
        self._check_whole_weights()
        if self.is_world_process_zero():
            encoder = save_export(self.to_sentence_transformer(), path)
            self._write_card(Path(path), Path(path).resolve().name, encoder)

    def _write_card(self, folder: Path, title: str, encoder: Any, place: str = PLACE) -> None:
        """Writes the card of the live model next to its export; `place` is where its code loads the model from."""
        card = card_for(card_text(trainer_facts(self, title, encoder)), place)
        check_no_token(card, CARD)
        write_text(folder / CARD, card)

    def _check_whole_weights(self) -> None:
        if getattr(self, "is_fsdp_enabled", False):
            raise XlsrError("Sharded weights cannot be exported during training. Use hf-xlsr export or push after it.")

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        token = self.args.hub_token
        self.args.hub_token = None  # the arguments are saved with the weights
        try:
            super()._save(output_dir, state_dict=state_dict)
        finally:
            self.args.hub_token = token

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if not busy or self.args.hub_always_push:
            self.push_to_hub(f"Training in progress, step {self.state.global_step}", blocking=False)


def merged_copy(trainer: Any) -> Any:
    """The live model; a copy with merged adapters if it has some, which training needs."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if base_model(model) is model:
        return model
    return merged(copy.deepcopy(model))


def export_trainer(trainer: Any, folder: Path) -> Any:
    """Exports the live model of a trainer into a folder.

    Returns:
        The export as sentence-transformers loads it; None for a model that has no such form, of which the weights and
        the tokenizer are written.
    """
    model = base_model(trainer.accelerator.unwrap_model(trainer.model))
    has_export = hasattr(model, "to_sentence_transformer")
    if has_export and getattr(model.config, "sentence_vector", "pooled") == "pooled":
        return save_export(trainer.to_sentence_transformer(), folder)

    merged_copy(trainer).save_pretrained(folder)
    trainer.save_tokenizers(folder)
    add_old_names(folder)
    return None


def _log_error(repo: str, job: Future[Any]) -> None:
    """Logs the error of a push in the background, for which nobody waits."""
    if job.cancelled():
        return
    try:
        with hub_errors(repo):
            job.result()
    except Exception as error:
        logger.warning("%s", redact_tokens(str(error)))
