"""TRL's own loss code on the same batch: its trainers' `_compute_loss`, called on tensors as they collate them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.train import references
from benchmarks.train.cases import model, rows
from benchmarks.train.losses import REFERENCE_SEED, Case, Computed, difference, here

_LONGEST = 12
_GRPO: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "advantages": "standardised", "epsilon": (0.2, 0.2)},
    "dr_grpo": {"loss_type": "dr_grpo", "advantages": "centred", "epsilon": (0.2, 0.2)},
    "lite_ppo": {"loss_type": "bnpo", "advantages": "batch", "epsilon": (0.2, 0.2)},
    "gspo": {"loss_type": "grpo", "advantages": "standardised", "epsilon": (3e-4, 4e-4)},
}
"""Each algorithm's settings in TRL's GRPO trainer."""

COMPARED = [
    Case(name, hyperparameters, lambda *_: torch.empty(0))
    for name, hyperparameters in (
        ("sft", {}),
        ("dpo", {}),
        ("ipo", {}),
        ("rloo", {}),
        ("grpo", {}),
        ("grpo", {"kl_weight": 0.1}),
        ("dr_grpo", {"longest": _LONGEST}),
        ("lite_ppo", {}),
        ("gspo", {}),
    )
]


def compare() -> dict[str, tuple[float, float]]:
    """Differences of loss and gradients between here and TRL, by case."""
    told = rows()
    return {case.name: difference(here(case, told), trl(case, told)) for case in COMPARED}


def trl(case: Case, told: list[dict[str, Any]]) -> Computed:
    """Loss and gradients by TRL, fp32, padded as it pads."""
    torch.manual_seed(0)
    found = model("sdpa", dtype=torch.float32).train()
    loss = {"sft": _sft, "dpo": _dpo, "ipo": _dpo, "rloo": _rloo}.get(case.algorithm, _grpo)(case, found, told)
    loss.backward()
    return Computed(loss.item(), {n: w.grad.double() for n, w in found.named_parameters() if w.grad is not None})


def padded(lists: Sequence[Sequence[float]], value: float, *, left: bool = False) -> torch.Tensor:
    """[rows, longest]"""
    longest = max(map(len, lists))
    fill = [[value] * (longest - len(row)) for row in lists]
    return torch.tensor([[*f, *row] if left else [*row, *f] for f, row in zip(fill, lists, strict=True)])


def rollout_inputs(told: list[dict[str, Any]], advantages: list[float]) -> dict[str, torch.Tensor]:
    """What TRL's GRPO and RLOO trainers compute a loss from."""
    prompts = [row["prompt_token_ids"] for row in told]
    answers = [row["completion_token_ids"] for row in told]
    return {
        "prompt_ids": padded(prompts, 0, left=True),
        "prompt_mask": padded([[1] * len(p) for p in prompts], 0, left=True),
        "completion_ids": padded(answers, 0),
        "completion_mask": padded([[1] * len(a) for a in answers], 0),
        "advantages": torch.tensor(advantages),
        "old_per_token_logps": padded([row["logprobs"] for row in told], 0.0),
        "old_logps": torch.tensor([sum(row["logprobs"]) for row in told]),
    }


def _self(found: Any, **told: Any) -> Any:
    """What the trainers' methods use of themselves."""
    accelerator = SimpleNamespace(
        device="cpu",
        num_processes=1,
        is_main_process=True,
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction="sum": x,
        autocast=lambda: torch.autocast("cpu", enabled=False),
        parallelism_config=None,
    )
    return SimpleNamespace(
        model=found,
        accelerator=accelerator,
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        current_gradient_accumulation_steps=1,
        state=SimpleNamespace(global_step=0),
        **told,
    )


def _grpo(case: Case, found: Any, told: list[dict[str, Any]]) -> torch.Tensor:
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(found, outputs=("log_probs", "entropy"))
    settings = _GRPO[case.algorithm]
    beta = case.hyperparameters.get("kl_weight", 0.0)
    trainer = _self(
        found,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="sequence" if case.algorithm == "gspo" else "token",
        beta=beta,
        loss_type=settings["loss_type"],
        epsilon_low=settings["epsilon"][0],
        epsilon_high=settings["epsilon"][1],
        args=SimpleNamespace(report_to=[], use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        max_completion_length=_LONGEST,
        _entropy_bonus_enabled=False,
    )
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: GRPOTrainer._get_per_token_logps_and_entropies(
        trainer, *a, **k
    )
    inputs = rollout_inputs(told, references.group_advantages(told, settings["advantages"]))
    if beta:
        inputs["ref_per_token_logps"] = padded([r.tolist() for r in _reference(told)], 0.0)
    return GRPOTrainer._compute_loss(trainer, found, inputs)


def _rloo(case: Case, found: Any, told: list[dict[str, Any]]) -> torch.Tensor:
    from trl.trainer.rloo_trainer import RLOOTrainer
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(found, outputs=("log_probs", "entropy"))
    trainer = _self(found, epsilon_low=0.2, epsilon_high=0.2, args=SimpleNamespace(report_to=[]))
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: RLOOTrainer._get_per_token_logps_and_entropies(
        trainer, *a, **k
    )
    inputs = rollout_inputs(told, references.group_advantages(told, "left_out"))
    return RLOOTrainer._compute_loss(trainer, found, inputs)


def _dpo(case: Case, found: Any, told: list[dict[str, Any]]) -> torch.Tensor:
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(found, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    reference = [float(r.sum()) for r in _reference(told)]
    order = sorted(range(len(told)), key=lambda i: (told[i]["role"], told[i]["pair"]))
    ids = [told[i]["prompt_token_ids"] + told[i]["completion_token_ids"] for i in order]
    masks = [[0] * len(told[i]["prompt_token_ids"]) + [1] * len(told[i]["completion_token_ids"]) for i in order]
    half = len(order) // 2
    trainer = _self(
        found,
        beta=0.1,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid" if case.algorithm == "dpo" else "ipo"],
        loss_weights=[1.0],
        use_weighting=False,
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {
        "input_ids": padded(ids, 0),
        "attention_mask": padded([[1] * len(row) for row in ids], 0),
        "completion_mask": padded(masks, 0),
        "ref_chosen_logps": torch.tensor([reference[i] for i in order[:half]]),
        "ref_rejected_logps": torch.tensor([reference[i] for i in order[half:]]),
    }
    return DPOTrainer._compute_loss(trainer, found, inputs, False)


def _sft(case: Case, found: Any, told: list[dict[str, Any]]) -> torch.Tensor:
    from trl.trainer.sft_trainer import SFTTrainer
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(found, outputs=("log_probs", "entropy", "is_top1"))
    trainer = _self(
        found,
        compute_loss_func=None,
        label_smoother=None,
        args=SimpleNamespace(loss_type="nll", average_tokens_across_devices=False),
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {
        "input_ids": padded([row["prompt_token_ids"] + row["completion_token_ids"] for row in told], 0),
        "attention_mask": padded([[1] * len(row["prompt_token_ids"] + row["completion_token_ids"]) for row in told], 0),
        "labels": padded([[-100] * len(row["prompt_token_ids"]) + row["completion_token_ids"] for row in told], -100),
    }
    return SFTTrainer.compute_loss(trainer, found, inputs)


def _reference(told: list[dict[str, Any]]) -> list[torch.Tensor]:
    with torch.no_grad():
        return references.token_logprobs(model("sdpa", seed=REFERENCE_SEED), told)
