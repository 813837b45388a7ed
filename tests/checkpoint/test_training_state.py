"""A run resumes only from a complete and finite training state."""

from pathlib import Path
from typing import Any

import pytest
import torch

from diglot.checkpoint.training_state import check_training_state
from diglot.errors import UserError


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["state_dict", "current_model_state", "optimizer_states"])
def test_no_run_resumes_from_a_checkpoint_with_nan(part: str, wrong: float) -> None:
    weights = {"model.w": torch.ones(3)}
    moments = {"state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(1.0)}}, "param_groups": []}
    content: dict[str, Any] = {"diglot": {}, "global_step": 1, "loops": {}, "lr_schedulers": []}
    content |= {"state_dict": weights, "current_model_state": {"w": torch.ones(3)}, "optimizer_states": [moments]}
    check_training_state(content, Path("last.ckpt"))
    (tensor, *_) = content[part].values() if part != "optimizer_states" else (moments["state"][0]["exp_avg"],)
    tensor[1] = wrong
    if part == "optimizer_states" and wrong == float("inf"):  # an infinite moment stops a weight and corrupts none
        check_training_state(content, Path("last.ckpt"))
        return
    whole = {"optimizer_states": ", because its optimizer's moments contain NaN"}
    what = whole.get(part, r": its weight \S*w is not finite")
    with pytest.raises(UserError, match=f"checkpoint last.ckpt: no run can resume from it{what}"):
        check_training_state(content, Path("last.ckpt"))
