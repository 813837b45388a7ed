"""Properties that every model must have; each promise is a function that checks a model with its config.

The model is in evaluation mode and without dropout. A promise may modify it.
"""

import io
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from conformance.reference import class_of, logits_of
from conformance.variants import V, build_from
from diglot.config import CONF
from diglot.decoding.layout import pack_for_decoding
from diglot.model import EncoderDecoder, Transformer
from diglot.model.position import PositionEncoding

Promise = Callable[[EncoderDecoder, DictConfig], None]
OF_ALL: list[Promise] = []
OF_TRANSFORMERS: list[Promise] = []
OF_THE_CAPTURED: list[Promise] = []  # slow

# Sizes that all differ; N is the number of hypotheses per sentence.
B, S, T, N = 2, 5, 7, 3
# Attention by the kernel that torch chooses, by its math kernel, and as in training on a CPU (if the model trains).
KERNELS = (nullcontext, partial(sdpa_kernel, SDPBackend.MATH), torch.enable_grad)


def promise(of: list[Promise]) -> Callable[[Promise], Promise]:
    def register(check: Promise) -> Promise:
        of.append(check)
        return check

    return register


def ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(4, V, shape, generator=torch.Generator().manual_seed(seed))


def mask_of(*lengths: int) -> Tensor:
    return torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]


def close(found: Tensor, expected: Tensor, within: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=within)


def randomised(model: nn.Module) -> nn.Module:
    """Initialise all parameters with large random values, so that a misplaced bias is detected."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


# ----------------------------------------------------------------------------------------------------- the papers


@promise(OF_ALL)
@torch.no_grad()
def a_model_computes_what_the_papers_say(model: EncoderDecoder, config: DictConfig) -> None:
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(S, S - 2)
    found = randomised(model).double()(src, tgt, mask)
    expected = logits_of(config, model.state_dict(), src, tgt, mask)
    close(found, expected, _float32(config))


def _float32(config: DictConfig) -> float:
    """Return the tolerance for a float64 model; position encodings compute their angles in float32 nevertheless."""
    positions = {class_of(node) for node in (config.get("position"), config.get("decoder_position")) if node}
    return 1e-5 if {"Sinusoidal", "Rotary"} & positions else 1e-7


@promise(OF_TRANSFORMERS)
@torch.no_grad()
def dropout_is_where_the_papers_have_it(model: Transformer, config: DictConfig) -> None:
    """With one kind of dropout near 1, the model equals the reference without the dropped terms."""
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(S, S - 2)
    randomised(model)
    for share in ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout"):
        nearly_all = OmegaConf.merge(config, {share: 1 - 1e-12})
        dropping = build_from(nearly_all, seed=1).double().train()
        dropping.load_state_dict(model.state_dict())
        expected = logits_of(config, model.state_dict(), src, tgt, mask, share)
        for kernel in KERNELS:
            with kernel():
                close(dropping(src, tgt, mask), expected, _float32(config))


# ----------------------------------------------------------------------------------------- padding and causality


@promise(OF_ALL)
@torch.no_grad()
def padding_changes_nothing(model: EncoderDecoder, config: DictConfig) -> None:
    alone, longer, tgt = ids(1, S), ids(1, 40, seed=2), ids(B, T)
    padded = torch.cat((alone, torch.zeros(1, 40 - S, dtype=torch.long)), 1)
    mask = mask_of(S, 40)
    memory = model.encode(torch.cat((padded, longer)), mask)
    close(memory[:1, :S], model.encode(alone), 1e-5)
    close(model.decode(tgt, memory, mask)[:1], model(alone, tgt[:1]), 1e-5)
    # Neither the amount nor the content of padding matters.
    padded[:, S:] = longer[:, S:]
    assert torch.equal(model.encode(torch.cat((padded, longer)), mask)[0, :S], memory[0, :S])


@promise(OF_ALL)
@torch.no_grad()
def the_future_is_invisible(model: EncoderDecoder, config: DictConfig) -> None:
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(S, S - 2)
    attentions = [attention for kind in model.attentions().values() for attention in kind]

    for dtype in (torch.float32, torch.bfloat16):
        for training, watched, kernel in itertools.product((False, True), (False, True), KERNELS):
            for attention in attentions:
                attention.watcher = (lambda weights: None) if watched else None
            with kernel():
                memory = model.train(training).to(dtype).encode(src, mask)
                before = model.decode(tgt, memory, mask)
                for j in (1, 4):
                    changed = tgt.clone()
                    changed[:, j] = (changed[:, j] + 1) % V
                    after = model.decode(changed, memory, mask)
                    assert torch.equal(before[:, :j], after[:, :j]), (j, dtype, training, watched, kernel)
                    assert not torch.equal(before[:, j], after[:, j]), (j, dtype, training, watched, kernel)


@promise(OF_ALL)
def weights_do_not_look_at_the_future(model: EncoderDecoder, config: DictConfig) -> None:
    src, tgt, j = ids(B, S), ids(B, T), 4
    before = model.attention_weights(src, tgt)
    after = model.attention_weights(src, torch.cat((tgt[:, :j], (tgt[:, j:] + 1) % V), 1))
    for a, b in zip(before.decoder + before.cross, after.decoder + after.cross, strict=True):
        assert torch.equal(a[:, :, :j], b[:, :, :j])
    assert all(torch.count_nonzero(found.triu(1)) == 0 for found in before.decoder)


@promise(OF_ALL)
def no_gradient_comes_from_the_future(model: EncoderDecoder, config: DictConfig) -> None:
    memory, seen, j = model.encode(ids(B, S)), [], 4
    model.tgt_embedding.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = model.decode(ids(B, T), memory)
    (gradient,) = torch.autograd.grad((logits[:, :j] * torch.linspace(-1, 1, V)).sum(), seen)
    assert gradient[:, :j].abs().amax(-1).min() > 0
    assert torch.count_nonzero(gradient[:, j:]) == 0


@promise(OF_ALL)
def a_source_of_padding_alone_gives_finite_numbers(model: EncoderDecoder, config: DictConfig) -> None:
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(0, S)
    for kernel in KERNELS:
        for training in (False, True):
            model.train(training).zero_grad()
            with kernel():
                logits = model(src, tgt, mask)
                close(logits[1:], model(src[1:], tgt[1:]), 1e-5)
                logits.logsumexp(-1).sum().backward()
            assert logits.isfinite().all()
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
        with torch.no_grad(), kernel():  # the same, token by token with a cache
            memory, cache = model.encode(src, mask), model.new_cache()
            steps = [model.decode(tgt[:, t : t + 1], memory, mask, cache) for t in range(T)]
        close(torch.cat(steps, 1), logits.detach(), 1e-4)
        with kernel():
            weights = model.attention_weights(src, tgt, mask)
        for found in weights.encoder + weights.cross:
            assert torch.count_nonzero(found[0]) == 0
            close(found[1].sum(-1), torch.ones_like(found[1, ..., 0]), 1e-5)


@promise(OF_ALL)
@torch.no_grad()
def the_order_of_the_source_matters(model: EncoderDecoder, config: DictConfig) -> None:
    """Check that reversing the source changes the encoding, except in a Transformer without position encoding."""
    src = ids(B, S)
    randomised(model)
    there, back = model.encode(src), model.encode(src.flip(1)).flip(1)
    if config.get("position") == OmegaConf.load(CONF / "model" / "position" / "none.yaml"):
        close(there, back, 1e-4)
    else:
        assert (there - back).abs().amax((1, 2)).min() > 1e-3


# ------------------------------------------------------------------------------------------------------ searching


@promise(OF_ALL)
@torch.no_grad()
def step_by_step_equals_all_at_once(model: EncoderDecoder, config: DictConfig) -> None:
    tgt, mask = ids(B, T), mask_of(S, S - 2)
    memory = model.encode(ids(B, S), mask)
    whole = model.decode(tgt, memory, mask)
    for sizes in ([1] * T, [3, 1, 2, 1], [2, 5]):
        cache = model.new_cache()
        parts = [model.decode(part, memory, mask, cache) for part in tgt.split(sizes, 1)]
        close(torch.cat(parts, 1), whole, 1e-4)
        assert len(cache) == T


@promise(OF_ALL)
@torch.no_grad()
def a_cache_follows_its_rows(model: EncoderDecoder, config: DictConfig) -> None:
    """Reorder hypotheses, replace one by a copy of another, and then remove a finished sentence."""
    tgt, mask = ids(B * N, T), mask_of(S, S - 2)
    memory, cache = model.encode(ids(B, S), mask), model.new_cache()
    for t in range(3):
        model.decode(tgt[:, t : t + 1], memory, mask, cache)
    rows = torch.tensor([2, 0, 0, 4, 5, 3])
    cache.select(rows)
    tgt = torch.cat((tgt[rows, :3], tgt[:, 3:]), 1)
    close(model.decode(tgt[:, 3:5], memory, mask, cache), model.decode(tgt, memory, mask)[:, 3:5], 1e-4)

    rows, sentences = torch.tensor([5, 3, 4]), torch.tensor([1])
    cache.select(rows, sentences)
    tgt, memory, mask = tgt[rows], memory[sentences], mask[sentences]
    for t in (5, 6):
        step = model.decode(tgt[:, t : t + 1], memory, mask, cache)
        close(step, model.decode(tgt, memory, mask)[:, t : t + 1], 1e-4)


@promise(OF_ALL)
@torch.no_grad()
def hypotheses_share_a_memory_as_if_each_had_its_own(model: EncoderDecoder, config: DictConfig) -> None:
    tgt, mask = ids(B * N, T), mask_of(S, S - 2)
    memory = model.encode(ids(B, S), mask)
    own = model.decode(tgt, memory.repeat_interleave(N, 0), mask.repeat_interleave(N, 0))
    close(model.decode(tgt, memory, mask), own, 1e-5)


@promise(OF_ALL)
def a_packed_model_decodes_the_same(model: EncoderDecoder, config: DictConfig) -> None:
    src, tgt, mask = ids(B, S), ids(B * N, T), mask_of(S, S - 2)

    def steps() -> list[Tensor]:
        memory, cache = model.encode(src, mask), model.new_cache()
        parts = [model.decode(part, memory, mask, cache) for part in tgt.split([2, 1, 1, 3], 1)]
        weights = model.attention_weights(src, tgt[:B], mask)
        return [torch.cat(parts, 1), *(layer for kind in weights for layer in kind)]

    with torch.inference_mode():
        expected = steps()
        for kind in ("plain", "packed") if torch.backends.mkldnn.is_available() else ("plain",):
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("DIGLOT_LINEAR", kind)
                replaced = pack_for_decoding(model)
            assert replaced
            for found, value in zip(steps(), expected, strict=True):
                close(found, value, 1e-4)
            for parent, name, child in replaced:
                setattr(parent, name, child)


# -------------------------------------------------------------------------------------------------------- weights


TIED = {
    "none": [],
    "target": [{"tgt_embedding.weight", "output.weight"}],
    "inputs": [{"src_embedding.weight", "tgt_embedding.weight"}],
    "all": [{"src_embedding.weight", "tgt_embedding.weight", "output.weight"}],
}


def shared(model: nn.Module) -> list[set[str]]:
    """Return groups of names of parameters and buffers that share storage."""
    groups: dict[int, set[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(tensor.untyped_storage().data_ptr(), set()).add(name)
    return [names for names in groups.values() if len(names) > 1]


@promise(OF_ALL)
def only_declared_ties_share_storage(model: EncoderDecoder, config: DictConfig) -> None:
    assert shared(model) == TIED[config.tying]

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = build_from(config, seed=2)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert shared(loaded) == TIED[config.tying]
    with torch.no_grad():
        assert torch.equal(loaded(ids(B, S), ids(B, T)), model(ids(B, S), ids(B, T)))


@promise(OF_ALL)
def every_weight_gets_a_finite_gradient(model: EncoderDecoder, config: DictConfig) -> None:
    mask = mask_of(S, S - 2)
    logits = model.train()(ids(B, S), ids(B, T), mask)
    nn.functional.cross_entropy(logits.flatten(0, 1), ids(B * T, seed=3)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@promise(OF_TRANSFORMERS)
@torch.no_grad()
def every_stack_ends_normalised_once(model: Transformer, config: DictConfig) -> None:
    seen: dict[str, Tensor] = {}
    model.encoder[-1].register_forward_hook(lambda module, inputs, output: seen.update(encoder=output))
    model.decoder[-1].register_forward_hook(lambda module, inputs, output: seen.update(decoder=output))
    model.output.register_forward_pre_hook(lambda module, inputs: seen.update(decoded=inputs[0]))
    memory = model.encode(ids(B, S))
    model.decode(ids(B, T), memory)

    def normalised(x: Tensor, norm: DictConfig) -> bool:
        centred = norm._target_ != "torch.nn.LayerNorm" or x.mean(-1).abs().max() < 1e-4
        return bool(centred and (x.square().mean(-1) - 1).abs().max() < 1e-2)

    for last, end, norm in (
        (seen["encoder"], memory, config.norm),
        (seen["decoder"], seen["decoded"], config.get("decoder_norm") or config.norm),
    ):
        assert normalised(end, norm)
        # If the last layer normalises its output, there is no final norm.
        assert normalised(last, norm) == torch.equal(last, end)


# ------------------------------------------------------------------------------------------------------- precision


@promise(OF_ALL)
@torch.no_grad()
def a_model_in_bfloat16_is_near_itself(model: EncoderDecoder, config: DictConfig) -> None:
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(S, S - 2)
    exact = model(src, tgt, mask)  # with standard deviation 1
    with torch.autocast("cpu", torch.bfloat16):
        assert (model(src, tgt, mask) - exact).square().mean() < 0.1**2
    logits = model.to(torch.bfloat16)(src, tgt, mask)
    assert logits.dtype == torch.bfloat16
    assert (logits - exact).square().mean() < 0.1**2


def said(position: PositionEncoding, dtype: torch.dtype) -> list[Tensor]:
    """Return the outputs of all hooks of an encoding for many positions."""
    positions = torch.arange(position.max_positions or 2048)
    pairs = torch.tensor([1.0, 0.0], dtype=dtype).repeat(position.d_head // 2)  # rotation gives cosine and sine
    bias = position.bias(positions[-3:], positions)
    return [
        position.embed(torch.zeros(1, len(positions), position.d_model, dtype=dtype), positions),
        position.rotate(pairs.expand(1, 1, len(positions), -1), positions),
        *([] if bias is None else [bias]),
    ]


@promise(OF_TRANSFORMERS)
@torch.no_grad()
def positions_survive_bfloat16(model: Transformer, config: DictConfig) -> None:
    for position in (model.encoder_position, model.decoder_position):
        exact = said(position, torch.float32)
        for a, b in zip(exact, said(position.bfloat16(), torch.bfloat16), strict=True):
            assert (a - b).abs().max() < 0.004
        if not list(position.parameters()):
            back = said(position.float(), torch.float32)
            assert all(torch.equal(a, b) for a, b in zip(exact, back, strict=True))


# --------------------------------------------------------------------------------------------------------- capture


@promise(OF_THE_CAPTURED)
def a_model_is_captured_whole(model: Transformer, config: DictConfig) -> None:
    del model.encoder[1:], model.decoder[1:]  # the other layers are alike, and capturing each takes a second
    src, tgt, mask = ids(B, S), ids(B, T), mask_of(S, S - 2)
    torch.compiler.reset()
    captured = torch.compile(model, fullgraph=True, backend="aot_eager")
    close(captured(src, tgt, mask), model(src, tgt, mask), 1e-5)
