"""Methods that fine-tune an encoder on a task: what classification and translation share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from hf_xlsr.data.sources import expand
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_classification import encoder_folder
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import Method
from hf_xlsr.runs.methods.hictl import HICTL_PAPER
from hf_xlsr.runs.sections import AdaptersSection, Recipe
from hf_xlsr.trainers.adapters import merged
from hf_xlsr.trainers.base import XlsrTrainer

START = (
    str | None,
    Field(None, description="an encoder, a HICTL model or the folder of a run: a path or an id on the Hub"),
)


class FineTuningRecipe(Recipe):
    adapters: AdaptersSection = AdaptersSection()


class FineTuningMethod(Method):
    """A method whose `model.start` names an encoder, a HICTL model or a run."""

    paper, citation = HICTL_PAPER, citations.HICTL
    config_class = HictlConfig

    recipe: FineTuningRecipe

    @classmethod
    def encoder_keys(cls, encoders: Mapping[str, str]) -> dict[str, Any]:
        return {"start": super().encoder_keys(encoders)["encoder"]["path"]}

    @property
    def start(self) -> str:
        return encoder_folder(expand(self.recipe.model["start"]))

    def from_encoder(self, model_class: Any, **options: Any) -> Any:
        """The model of the recipe on its encoder, with further values of its configuration."""
        own = dict(self.recipe.model)
        with self.explained("model"):
            model = model_class.from_encoder(expand(own.pop("start")), **own, **options)
        return self.initialize(model)

    def save(self, folder: RunFolder, trainer: XlsrTrainer, tokenizer: Any, **attributes: Any) -> Any:
        """Writes the trained model, with adapters merged, and its tokenizer to `folder.model`, and loads it from there.

        `attributes` are set on the model first.
        """
        model = merged(trainer.accelerator.unwrap_model(trainer.model))
        for name, value in attributes.items():
            setattr(model, name, value)
        model.save_pretrained(folder.model)
        tokenizer.save_pretrained(str(folder.model))
        # As in training: on a CPU bfloat16 rounds differently with another implementation.
        attention = {"attn_implementation": model.config._attn_implementation}
        return type(model).from_pretrained(folder.model, **attention).to(trainer.args.device)

    def live_options(self, trainer: XlsrTrainer) -> dict[str, Any]:
        return {
            "max_length": self.recipe.data.max_length,
            "autocast_dtype": trainer.autocast_dtype,
            "progress": not trainer.args.disable_tqdm,
        }
