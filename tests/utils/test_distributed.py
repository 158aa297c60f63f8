from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hf_xlsr.utils.distributed import gather_with_gradient, world_size

# Run by both processes; the test takes model and batch from it for the one-process twin.
WORKER = '''
from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

from hf_xlsr import LightweightConfig, LightweightDualTransformer
from hf_xlsr.utils.distributed import gather_with_gradient, world_size
from hf_xlsr.losses import bags_of_words, draw_negative_words

PAIRS, LENGTH, VOCABULARY = 6, 5, 30
TEXT = {"model_type": "bert", "vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 8,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIGS = {
    "paper": {},
    "sum": {"similarity_reduction": "sum"},
    "contrast": {"generative_weight": 0.0, "alignment_normalize": True, "alignment_temperature": 0.1},
    "mlm": {"generative_task": "mlm"},
    "mlm+xtr": {"generative_task": "mlm+xtr"},
}


def build(name):
    torch.manual_seed(0)
    model = LightweightDualTransformer(LightweightConfig(text_config=dict(TEXT), **CONFIGS[name])).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # away from the near-uniform start, where most gradients vanish
    return model


def batch(pairs):
    """The pairs asked for, sources over targets."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (2 * PAIRS, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (2 * PAIRS, 1), generator=generator)).long()
    hidden = torch.where(torch.arange(2 * PAIRS) < PAIRS, ids[:, 0], -100)
    # One piece of the last three pairs, all those of the others: the processes have unequal shares of the masked ones.
    few = torch.arange(2 * PAIRS)[:, None] % PAIRS >= PAIRS // 2
    labels = torch.where((mask == 1) & ~(few & (torch.arange(LENGTH) > 0)), ids, -100)
    rows = [*pairs, *(pair + PAIRS for pair in pairs)]
    names = ("input_ids", "attention_mask", "original_ids", "masked_ids", "mlm_labels")
    return {name: tensor[rows] for name, tensor in zip(names, (ids, mask, ids, hidden, labels))}


def rows_and_weights():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2)]


def drawn_words():
    bags = bags_of_words(torch.zeros(2, 1).long(), torch.ones(2, 1).long(), [0])
    return draw_negative_words(torch.ones(2, 8), torch.ones(400, 8), bags, special_ids=[0], count=40)


def main(folder):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    results = {}
    torch.manual_seed(4)
    results["words"] = drawn_words()
    rows, weights = rows_and_weights()
    local = rows.chunk(size)[rank].clone().requires_grad_()
    gathered = gather_with_gradient(local)
    results["gathered"] = gathered.detach()
    ((gathered * weights).sum() ** 2).backward()
    results["gathered_gradient"] = local.grad
    share = PAIRS // size
    for name in CONFIGS:
        model = DistributedDataParallel(build(name))
        for step in range(2):  # the second step fails when a parameter got no gradient in the first
            model.zero_grad()
            output = model(**batch(range(rank * share, (rank + 1) * share)))
            output.loss.backward()
        results[f"{name}/loss"] = output.loss.detach()
        results.update({f"{name}/{key}": parameter.grad for key, parameter in model.module.named_parameters()})
    save_file({key: value.contiguous() for key, value in results.items()}, folder / f"{rank}.safetensors")
    facts = {"pid": os.getpid(), "rank": rank, "world_size": world_size(), "backend": dist.get_backend()}
    (folder / f"{rank}.json").write_text(json.dumps(facts))
    os._exit(0)  # torch may deadlock over the GIL when a DDP model is freed after its gloo group


if __name__ == "__main__":
    main(Path(sys.argv[1]))
'''


class Run:
    """What two processes left behind, and the code they ran."""

    def __init__(self, folder: Path) -> None:
        script = folder / "worker.py"
        script.write_text(WORKER)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        launcher = subprocess.Popen(
            [*command, str(script), str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, errors = launcher.communicate(timeout=200)
        finally:
            launcher.terminate()  # takes its workers with it
        assert launcher.returncode == 0, errors[-4000:]
        self.code: dict[str, Any] = runpy.run_path(str(script), run_name="worker")
        self.facts = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
        self.results = [load_file(folder / f"{rank}.safetensors") for rank in range(2)]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("two_processes"))


def test_two_processes_really_ran(two_processes: Run) -> None:
    assert [facts["rank"] for facts in two_processes.facts] == [0, 1]
    assert all(facts["world_size"] == 2 and facts["backend"] == "gloo" for facts in two_processes.facts)
    assert len({facts["pid"] for facts in two_processes.facts} | {os.getpid()}) == 3


def test_rows_come_in_rank_order_and_gradients_go_home(two_processes: Run) -> None:
    rows, weights = two_processes.code["rows_and_weights"]()
    rows.requires_grad_()
    ((rows * weights).sum() ** 2).backward()
    for rank, results in enumerate(two_processes.results):
        torch.testing.assert_close(results["gathered"], rows.detach())
        # Both ranks compute the same loss; the owner of a row receives the sum over ranks.
        torch.testing.assert_close(results["gathered_gradient"], 2 * rows.grad.chunk(2)[rank])


@pytest.mark.parametrize("name", ["paper", "sum", "contrast", "mlm", "mlm+xtr"])
def test_the_averaged_gradient_is_that_of_one_process_on_the_global_batch(two_processes: Run, name: str) -> None:
    model = two_processes.code["build"](name)
    loss = model(**two_processes.code["batch"](range(two_processes.code["PAIRS"]))).loss
    loss.backward()
    losses = [results[f"{name}/loss"] for results in two_processes.results]
    torch.testing.assert_close(sum(losses) / 2, loss.detach())
    expected = {key: parameter.grad for key, parameter in model.named_parameters()}
    assert expected["encoder.embeddings.word_embeddings.weight"].norm() > 0.1
    for results in two_processes.results:
        averaged = {key: results[f"{name}/{key}"] for key in expected}
        torch.testing.assert_close(averaged, expected, rtol=1e-7, atol=1e-9)


def test_negatives_of_the_other_process_matter(two_processes: Run) -> None:
    code = two_processes.code
    halves = []
    for pairs in (range(0, 3), range(3, 6)):
        model = code["build"]("contrast")
        model(**code["batch"](pairs)).loss.backward()
        halves.append(model.get_input_embeddings().weight.grad)
    together = two_processes.results[0]["contrast/encoder.embeddings.word_embeddings.weight"]
    assert (sum(halves) / 2 - together).norm() > 0.1 * together.norm()


def test_each_process_draws_negative_words_of_its_own(two_processes: Run) -> None:
    first, second = (results["words"] for results in two_processes.results)
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        assert len({*one} & {*other}) < 20  # by chance 4 of 40


def test_one_process_gathers_nothing() -> None:
    local = torch.ones(2, 3, requires_grad=True)
    assert world_size() == 1
    assert gather_with_gradient(local) is local
