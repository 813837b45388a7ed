"""What every variant promises, whatever its position encoding, norm placement, network or tying.

The variants are the files of conf/model: a new one is tested here without a change.
"""

import copy
import inspect
import io
import typing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from diglot.config import CONF, build
from diglot.errors import UserError
from diglot.model import Transformer
from diglot.model.position import Rotary
from diglot.model.transformer import DecoderLayer, EncoderLayer

FOLDER = CONF / "model"
POSITIONS, RESIDUALS = (
    sorted(file.stem for file in (FOLDER / group).glob("*.yaml")) for group in ("position", "residual")
)
OTHER_GROUPS = sorted(p.name for p in FOLDER.iterdir() if p.is_dir() and p.name not in ("position", "residual"))
SIZES = sorted(file.stem for file in FOLDER.glob("*.yaml") if file.stem != "transformer")
TYINGS = typing.get_args(inspect.signature(Transformer).parameters["tying"].annotation)

VARIANTS = (
    [(f"model/position={position}", f"model/residual={residual}") for position in POSITIONS for residual in RESIDUALS]
    + [
        (f"model/{group}={file.stem}", f"model/residual={residual}")
        for group in OTHER_GROUPS
        for file in sorted((FOLDER / group).glob("*.yaml"))
        for residual in RESIDUALS
    ]
    + [(f"model.tying={tying}",) for tying in TYINGS]
    + [("model.d_head=10",), ("model.d_head=10", "model/position=rotary"), ("model.n_heads=1", "model/position=alibi")]
)

B, S, T, D, V, N = 2, 5, 7, 24, 37, 3

Build = Callable[..., Transformer]
# Attention by whichever kernel torch takes, and by the plain one that training on a CPU takes.
KERNELS = [nullcontext, partial(sdpa_kernel, SDPBackend.MATH)]
built: dict[tuple[str, ...], Transformer] = {}


@pytest.fixture(params=VARIANTS, ids=lambda overrides: " ".join(o.removeprefix("model") for o in overrides))
def model(request: pytest.FixtureRequest, build_model: Build) -> Transformer:
    """Each variant in turn, in evaluation mode, the same weights each time and the test's own to change."""
    if request.param not in built:
        built[request.param] = build_model(*request.param)
    return copy.deepcopy(built[request.param])


def ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(4, V, shape, generator=torch.Generator().manual_seed(seed))


def mask_of(*lengths: int) -> Tensor:
    return torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]


# --------------------------------------------------------------------------------------------------------- promises


@torch.no_grad()
def test_padding_changes_nothing(model: Transformer) -> None:
    alone, longer, tgt = ids(1, S), ids(1, 41, seed=2), ids(B, T)
    padded = torch.cat((alone, torch.zeros(1, 41 - S, dtype=torch.long)), 1)
    mask = mask_of(S, 41)
    memory = model.encode(torch.cat((padded, longer)), mask)
    torch.testing.assert_close(memory[:1, :S], model.encode(alone), rtol=0, atol=1e-5)
    torch.testing.assert_close(model.decode(tgt, memory, mask)[:1], model(alone, tgt[:1]), rtol=0, atol=1e-5)
    # What stands in the padding is as little seen as how much of it there is.
    padded[:, S:] = longer[:, S:]
    assert torch.equal(model.encode(torch.cat((padded, longer)), mask)[0, :S], memory[0, :S])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@torch.no_grad()
def test_the_future_is_invisible(
    model: Transformer, kernel: Callable[[], AbstractContextManager], training: bool, dtype: torch.dtype
) -> None:
    model.train(training).to(dtype)
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(S, S - 2)
    with kernel():
        before = model(src, tgt, mask)
        for j in (1, 4, T - 1):
            changed = tgt.clone()
            changed[:, j] = (changed[:, j] + 1) % V
            after = model(src, changed, mask)
            assert torch.equal(before[:, :j], after[:, :j])
            assert not torch.equal(before[:, j], after[:, j])


def test_no_gradient_comes_from_the_future(model: Transformer) -> None:
    memory, seen = model.encode(ids(B, S)), []
    model.tgt_embedding.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = model.decode(ids(B, T), memory)
    j = 4
    (gradient,) = torch.autograd.grad((logits[:, :j] * torch.randn(V)).sum(), seen)
    assert gradient[:, :j].abs().amax(-1).min() > 0
    assert torch.count_nonzero(gradient[:, j:]) == 0


@torch.no_grad()
def test_step_by_step_equals_all_at_once(model: Transformer) -> None:
    tgt, mask = ids(B, T), mask_of(S, S - 2)
    memory, cache = model.encode(ids(B, S), mask), model.new_cache()
    steps = [model.decode(tgt[:, t : t + 1], memory, mask, cache) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, 1), model.decode(tgt, memory, mask), rtol=0, atol=1e-4)
    assert len(cache) == T


@torch.no_grad()
def test_several_tokens_a_step_equal_all_at_once(model: Transformer) -> None:
    tgt, memory, cache = ids(B, T), model.encode(ids(B, S)), model.new_cache()
    parts = [model.decode(part, memory, None, cache) for part in tgt.split((3, 2, 2), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model.decode(tgt, memory), rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_cache_follows_its_rows(model: Transformer) -> None:
    """Hypotheses change places, one is dropped for the copy of another, and then a whole sentence is done."""
    tgt, mask = ids(B * N, T), mask_of(S, S - 2)
    memory, cache = model.encode(ids(B, S), mask), model.new_cache()
    for t in range(3):
        model.decode(tgt[:, t : t + 1], memory, mask, cache)
    rows = torch.tensor([2, 0, 0, 4, 5, 3])
    cache.select(rows)
    tgt = torch.cat((tgt[rows, :3], tgt[:, 3:]), 1)
    step = model.decode(tgt[:, 3:4], memory, mask, cache)
    torch.testing.assert_close(step, model.decode(tgt, memory, mask)[:, 3:4], rtol=0, atol=1e-4)

    rows, sentences = torch.tensor([5, 3, 4]), torch.tensor([1])
    cache.select(rows, sentences)
    tgt, memory, mask = tgt[rows], memory[sentences], mask[sentences]
    step = model.decode(tgt[:, 4:5], memory, mask, cache)
    torch.testing.assert_close(step, model.decode(tgt, memory, mask)[:, 4:5], rtol=0, atol=1e-4)


@torch.no_grad()
def test_hypotheses_share_a_memory_as_if_each_had_its_own(model: Transformer) -> None:
    tgt, mask = ids(B * N, T), mask_of(S, S - 2)
    memory = model.encode(ids(B, S), mask)
    own = model.decode(tgt, memory.repeat_interleave(N, 0), mask.repeat_interleave(N, 0))
    torch.testing.assert_close(model.decode(tgt, memory, mask), own, rtol=0, atol=1e-5)


def shared(model: nn.Module) -> list[set[str]]:
    """The names of weights and buffers that share storage, group by group."""
    groups: dict[int, set[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(tensor.untyped_storage().data_ptr(), set()).add(name)
    return [names for names in groups.values() if len(names) > 1]


TIED = {
    "none": [],
    "target": [{"tgt_embedding.weight", "output.weight"}],
    "all": [{"src_embedding.weight", "tgt_embedding.weight", "output.weight"}],
}


@pytest.mark.parametrize("overrides", VARIANTS, ids=" ".join)
def test_only_declared_ties_share_storage(build_model: Build, compose_train: Callable, overrides: tuple) -> None:
    model, tying = build_model(*overrides), compose_train(*overrides).model.tying
    assert shared(model) == TIED[tying]

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = build_model(*overrides, seed=2)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert shared(loaded) == TIED[tying]
    with torch.no_grad():
        assert torch.equal(loaded(ids(B, S), ids(B, T)), model(ids(B, S), ids(B, T)))


@pytest.mark.parametrize("tying", TYINGS)
def test_each_tying_is_tested_for_what_it_ties(tying: str) -> None:
    assert tying in TIED


@pytest.mark.parametrize("tying", [tying for tying in TYINGS if tying != "all"])
def test_two_vocabularies_may_differ_where_they_are_not_tied(build_model: Build, tying: str) -> None:
    model = build_model(f"model.tying={tying}", src_vocab_size=V + 9, tgt_vocab_size=V)
    assert model(ids(B, S) + 9, ids(B, T)).shape == (B, T, V)


def test_every_weight_gets_a_finite_gradient(model: Transformer) -> None:
    mask = mask_of(S, S - 2)
    logits = model.train()(ids(B, S), ids(B, T), mask)
    nn.functional.cross_entropy(logits.flatten(0, 1), ids(B * T, seed=3)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_source_of_nothing_but_padding_gives_finite_output(
    model: Transformer, kernel: Callable[[], AbstractContextManager], training: bool
) -> None:
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(0, S)
    with kernel():
        logits = model.train(training)(src, tgt, mask)
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[1:], model(src[1:], tgt[1:]), rtol=0, atol=1e-5)
    logits.logsumexp(-1).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    with torch.no_grad():  # the same as a search sees it
        memory, cache = model.encode(src, mask), model.new_cache()
        steps = [model.decode(tgt[:, t : t + 1], memory, mask, cache) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, 1), logits.detach(), rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_model_in_bfloat16_runs(model: Transformer) -> None:
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(S, S - 2)
    exact = model(src, tgt, mask)
    logits = model.to(torch.bfloat16)(src, tgt, mask)
    assert logits.dtype == torch.bfloat16
    assert (logits - exact).abs().max() < 0.15
    with torch.autocast("cpu", torch.bfloat16):
        assert model.float()(src, tgt, mask).isfinite().all()


# -------------------------------------------------------------------------------------------------------- positions


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_every_encoding_but_none_tells_a_sentence_from_its_reversal(
    build_model: Build, position: str, residual: str
) -> None:
    model, src = build_model(f"model/position={position}", f"model/residual={residual}"), ids(B, S)
    difference = (model.encode(src.flip(1)).flip(1) - model.encode(src)).abs().amax((1, 2))
    if position == "none":
        assert difference.max() < 1e-5
    else:
        assert difference.min() > 1e-3


def test_rotary_angles_survive_bfloat16() -> None:
    n_positions, width = 2048, 64
    rotary = Rotary(d_model=512, n_heads=8, d_head=width, causal=True).to(torch.bfloat16)
    ones = torch.zeros(1, 1, n_positions, width, dtype=torch.bfloat16)
    ones[..., 0::2] = 1  # turned, the pair (1, 0) is (cos, sin)
    turned = rotary.rotate(ones, torch.arange(n_positions))[0, 0]
    assert turned.dtype == torch.bfloat16
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(n_positions)[:, None] * frequencies
    assert (turned[:, 0::2] - angles.cos()).abs().max() < 0.004
    assert (turned[:, 1::2] - angles.sin()).abs().max() < 0.004


# ------------------------------------------------------------------------------------------------------------ norms


@pytest.mark.parametrize("residual", RESIDUALS)
@torch.no_grad()
def test_every_stack_ends_normalised(build_model: Build, residual: str) -> None:
    deep = ("model.n_encoder_layers=6", "model.n_decoder_layers=6")
    model, ends = build_model(f"model/residual={residual}", *deep), []
    model.output.register_forward_pre_hook(lambda module, inputs: ends.append(inputs[0]))
    ends.append(model.encode(ids(B, S)))
    model.decode(ids(B, T), ends[0])
    assert len(ends) == 2
    for end in ends:
        assert end.mean(-1).abs().max() < 1e-4
        assert (end.var(-1, correction=0) - 1).abs().max() < 1e-2


@pytest.mark.parametrize(("residual", "final"), [("pre_norm", 2), ("post_norm", 0)])
def test_only_pre_norm_stacks_get_a_norm_of_their_own(build_model: Build, residual: str, final: int) -> None:
    model = build_model(f"model/residual={residual}", "model.n_encoder_layers=2", "model.n_decoder_layers=3")
    n_norms = sum(isinstance(module, nn.LayerNorm) for module in model.modules())
    assert n_norms == 2 * 2 + 3 * 3 + final
    assert sum(isinstance(norm, nn.LayerNorm) for norm in (model.encoder_norm, model.decoder_norm)) == final


# ------------------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize("size", SIZES)
def test_a_model_has_as_many_weights_as_the_paper_counts(compose_train: Callable[..., DictConfig], size: str) -> None:
    v = 37_000  # the paper's English-German vocabulary
    config = compose_train(
        f"model={size}", "model/residual=post_norm", "model/position=sinusoidal", "model/norm=layer_norm"
    ).model
    with torch.device("meta"):
        model = build(config, "model", src_vocab_size=v, tgt_vocab_size=v)
    d, f = config.d_model, config.d_ff
    attention, network, norm = 4 * (d * d + d), d * f + f + f * d + d, 2 * d
    encoder = config.n_encoder_layers * (attention + network + 2 * norm)
    decoder = config.n_decoder_layers * (2 * attention + network + 3 * norm)
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    assert n_weights == encoder + decoder + v * d
    assert len(model.encoder) == config.n_encoder_layers
    assert len(model.decoder) == config.n_decoder_layers
    assert all(isinstance(layer, EncoderLayer) for layer in model.encoder)
    assert all(isinstance(layer, DecoderLayer) for layer in model.decoder)
    assert {"base": 63_082_496, "big": 214_245_376}.get(size, n_weights) == n_weights


@pytest.mark.parametrize("tying", TYINGS)
def test_embeddings_are_drawn_with_the_paper_s_deviation(build_model: Build, tying: str) -> None:
    model = build_model(f"model.tying={tying}", "model.d_model=48", src_vocab_size=2000, tgt_vocab_size=2000)
    for weight in (model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight):
        assert weight.std().item() == pytest.approx(48**-0.5, rel=0.02)
        assert abs(weight.mean().item()) < 0.002


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["model.n_heads=5"], "n_heads (5) must divide d_model (24)"),
        (["model.d_model=0"], "d_model (0)"),
        (["model.n_heads=-3"], "n_heads (-3)"),
        (["model.d_head=0"], "d_head (0)"),
        (["model.d_ff=0"], "d_ff (0)"),
        (["model.n_encoder_layers=0"], "n_encoder_layers (0)"),
        (["model.n_decoder_layers=0"], "n_decoder_layers (0)"),
        (["model.dropout=1.0"], "dropout (1.0)"),
        (["model.dropout=-0.1"], "dropout (-0.1)"),
        (["model.tying=both"], "tying (both)"),
        (["model.d_model=25", "model.n_heads=5", "model/position=sinusoidal"], "d_model (25) must be even"),
        (["model.d_model=27", "model/position=rotary"], "d_head (9) must be even"),
        (["model.d_head=7", "model/position=rotary"], "d_head (7) must be even"),
        (["model/position=learned", "model.position.max_positions=0"], "max_positions (0)"),
        (["model/position=relative_bias", "model.position.n_buckets=2"], "n_buckets (2)"),
        (["model/position=relative_bias", "model.position.max_distance=8"], "max_distance (8)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(build_model: Build, overrides: list[str], named: str) -> None:
    with pytest.raises(UserError) as refused:
        build_model(*overrides)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_embedding_for_two_vocabularies_is_refused(build_model: Build) -> None:
    with pytest.raises(UserError, match="tying all needs one vocabulary; these have 30 and 37"):
        build_model(src_vocab_size=30)


@torch.no_grad()
def test_learned_positions_say_how_many_they_are(build_model: Build) -> None:
    model = build_model("model/position=learned", "model.position.max_positions=6")
    assert model.max_positions == 6
    assert model(ids(B, S), ids(B, 6)).isfinite().all()
    assert build_model("model/position=rotary").max_positions is None
