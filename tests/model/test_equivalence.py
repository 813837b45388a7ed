"""The model computes the same as torch's own layers and the formulas of the papers."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from diglot.model import Transformer
from diglot.model.attention import SelfAttention, merge_masks
from diglot.model.feed_forward import FeedForward
from diglot.model.position import Alibi, PositionEncoding, RelativeBias, Rotary, Sinusoidal
from diglot.model.residual import PostNorm, PreNorm, Residual

B, S, T, D, H, K, F, V = 2, 5, 7, 24, 3, 8, 40, 37


def randomised(module: nn.Module) -> nn.Module:
    """Initialise all parameters randomly, so that a misplaced bias is detected."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return module


# ------------------------------------------------------------------------------------------------- torch's own layers


def copy_attention(ours: Residual, theirs: nn.MultiheadAttention) -> None:
    inner = ours.sublayer
    theirs.in_proj_weight.copy_(torch.cat([inner.query.weight, inner.key.weight, inner.value.weight]))
    theirs.in_proj_bias.copy_(torch.cat([inner.query.bias, inner.key.bias, inner.value.bias]))
    theirs.out_proj.load_state_dict(inner.out.state_dict())


def copy_rest(ours: nn.Module, theirs: nn.Module, norms: list[str]) -> None:
    theirs.linear1.load_state_dict(ours.feed_forward.sublayer.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.sublayer.down.state_dict())
    for i, name in enumerate(norms, start=1):
        getattr(theirs, f"norm{i}").load_state_dict(getattr(ours, name).norm.state_dict())


@torch.no_grad()
def torch_stacks(model: Transformer, norm_first: bool, activation: str) -> tuple[nn.Module, nn.Module]:
    """Return torch's encoder and decoder with the weights of our model."""
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm_first}
    final = (lambda: nn.LayerNorm(D)) if norm_first else (lambda: None)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, H, F, **options), len(model.encoder), final(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, F, **options), len(model.decoder), final())
    encoder.double(), decoder.double()
    for ours, theirs in zip(model.encoder, encoder.layers, strict=True):
        copy_attention(ours.self_attention, theirs.self_attn)
        copy_rest(ours, theirs, ["self_attention", "feed_forward"])
    for ours, theirs in zip(model.decoder, decoder.layers, strict=True):
        copy_attention(ours.self_attention, theirs.self_attn)
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        copy_rest(ours, theirs, ["self_attention", "cross_attention", "feed_forward"])
    if norm_first:
        encoder.norm.load_state_dict(model.encoder_norm.state_dict())
        decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return encoder, decoder


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("residual", [PostNorm, PreNorm])
def test_stacks_equal_those_of_torch(residual: type[Residual], activation: str) -> None:
    model = Transformer(
        src_vocab_size=V - 6,
        tgt_vocab_size=V,
        d_model=D,
        n_heads=H,
        d_ff=F,
        n_encoder_layers=2,
        n_decoder_layers=3,
        dropout=0.0,
        tying="none",
        position=PositionEncoding,
        residual=residual,
        norm=nn.LayerNorm,
        feed_forward=partial(FeedForward, activation={"relu": nn.ReLU, "gelu": nn.GELU}[activation]),
    )
    randomised(model).double()
    encoder, decoder = torch_stacks(model, residual is PreNorm, activation)
    src, tgt = torch.arange(B * S).view(B, S) % (V - 6), torch.arange(B * T).view(B, T) * 5 % V
    src_mask = torch.arange(S)[None, :] < torch.tensor([S, S - 2])[:, None]

    memory = model.encode(src, src_mask)
    expected = encoder(model.src_embedding(src) * D**0.5, src_key_padding_mask=~src_mask)
    torch.testing.assert_close(memory[src_mask], expected[src_mask], rtol=1e-10, atol=1e-10)

    logits = model.decode(tgt, memory, src_mask)
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)
    states = decoder(model.tgt_embedding(tgt) * D**0.5, memory, causal, memory_key_padding_mask=~src_mask)
    torch.testing.assert_close(logits, states @ model.output.weight.T, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------------------------------------- position encodings


def test_sinusoids_are_those_of_the_paper() -> None:
    positions = torch.arange(3, 60)  # not from 0, as in a search
    added = Sinusoidal(d_model=D, n_heads=H, d_head=K, causal=False).embed(
        torch.zeros(1, len(positions), D), positions
    )[0]
    for row, position in zip(added.tolist(), positions.tolist(), strict=True):
        for i in range(D // 2):
            angle = position / 10_000 ** (2 * i / D)
            assert row[2 * i] == pytest.approx(math.sin(angle), abs=1e-5)
            assert row[2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-5)


def test_sinusoids_of_another_base_and_start_are_those_of_fairseq() -> None:
    """Check the encoding of fairseq and M2M100, whose last frequency is 1 / 10,000 and whose first position is 2."""
    half = D // 2
    encoding = Sinusoidal(D, H, K, causal=False, base=10_000 ** (half / (half - 1)), offset=2)
    rows = encoding.embed(torch.zeros(1, 20, D), torch.arange(20))[0]
    for position, row in enumerate(rows.tolist(), start=2):
        for i in range(half):
            angle = position * math.exp(-i * math.log(10_000) / (half - 1))
            assert row[2 * i] == pytest.approx(math.sin(angle), abs=1e-5)
            assert row[2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-5)


def reference_attention(
    attention: SelfAttention,
    x: Tensor,
    positions: list[int],
    causal: bool,
    rotate: Callable[[Tensor, int], Tensor] = lambda vector, position: vector,
    bias: Callable[[int, int, int], float] = lambda head, query, key: 0.0,
) -> Tensor:
    """Compute attention in float64, one query and head at a time.

    `bias` is a function of the head, the query position and the key position.
    """
    x = x.double()
    q, k, v = (
        (x @ layer.weight.double().T + layer.bias.double()).view(*x.shape[:2], H, K)
        for layer in (attention.query, attention.key, attention.value)
    )
    out = torch.zeros(*x.shape[:2], H, K, dtype=torch.float64)
    for b in range(x.size(0)):
        for h in range(H):
            for i, here in enumerate(positions):
                seen = [j for j, there in enumerate(positions) if there <= here or not causal]
                query = rotate(q[b, i, h], here)
                scores = [
                    float(query @ rotate(k[b, j, h], positions[j])) / math.sqrt(K) + bias(h, here, positions[j])
                    for j in seen
                ]
                weights = [math.exp(score - max(scores)) for score in scores]
                for j, weight in zip(seen, weights, strict=True):
                    out[b, i, h] += weight / sum(weights) * v[b, j, h]
    return out.flatten(2) @ attention.out.weight.double().T + attention.out.bias.double()


def run_attention(attention: SelfAttention, x: Tensor, position: PositionEncoding, positions: Tensor) -> Tensor:
    bias = position.bias(positions, positions)
    visible = merge_masks(None, bias, positions, positions, position.causal, x.dtype)
    return attention(x, visible, position, positions)


@pytest.fixture
def attention() -> SelfAttention:
    return randomised(SelfAttention(D, H, K, 0.0))  # type: ignore[return-value]


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(2))


POSITIONS = [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_rotary_attention_equals_turning_complex_numbers(
    attention: SelfAttention, tokens: Tensor, causal: bool
) -> None:
    def turn(vector: Tensor, position: int) -> Tensor:
        turned = vector.clone()
        for i in range(K // 2):
            angle = position * 10_000 ** (-2 * i / K)
            number = complex(vector[2 * i], vector[2 * i + 1]) * complex(math.cos(angle), math.sin(angle))
            turned[2 * i], turned[2 * i + 1] = number.real, number.imag
        return turned

    ours = run_attention(
        attention, tokens, Rotary(d_model=D, n_heads=H, d_head=K, causal=causal), torch.tensor(POSITIONS)
    )
    expected = reference_attention(attention, tokens, POSITIONS, causal, rotate=turn)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_alibi_attention_equals_a_penalty_by_distance(attention: SelfAttention, tokens: Tensor, causal: bool) -> None:
    slopes = [1 / 16, 1 / 256, 1 / 4]  # for 3 heads: the slopes for 2 heads, and the first of those for 4

    def penalty(head: int, query: int, key: int) -> float:
        return -slopes[head] * (query - key if key <= query else (key - query) / 2)

    ours = run_attention(
        attention, tokens, Alibi(d_model=D, n_heads=H, d_head=K, causal=causal), torch.tensor(POSITIONS)
    )
    expected = reference_attention(attention, tokens, POSITIONS, causal, bias=penalty)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5)


def bucket(offset: int, causal: bool, n_buckets: int, max_distance: int) -> int:
    """Return the T5 paper's bucket of one offset (key minus query)."""
    first = 0
    if causal:
        distance = max(-offset, 0)
    else:
        n_buckets //= 2
        first = n_buckets if offset > 0 else 0
        distance = abs(offset)
    n_exact = n_buckets // 2
    if distance < n_exact:
        return first + distance
    share = math.log(distance / n_exact) / math.log(max_distance / n_exact)
    return first + min(n_buckets - 1, n_exact + int(share * (n_buckets - n_exact) + 1e-9))


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_relative_bias_attention_equals_a_score_by_bucket(
    attention: SelfAttention, tokens: Tensor, causal: bool
) -> None:
    position = randomised(RelativeBias(d_model=D, n_heads=H, d_head=K, causal=causal, n_buckets=8, max_distance=6))
    table = position.table.weight.tolist()

    def score(head: int, query: int, key: int) -> float:
        return table[bucket(key - query, causal, 8, 6)][head]

    ours = run_attention(attention, tokens, position, torch.tensor(POSITIONS))
    expected = reference_attention(attention, tokens, POSITIONS, causal, bias=score)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("n_heads", "slopes"),
    [
        (8, [2.0**-i for i in range(1, 9)]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (1, [2.0**-8]),
    ],
)
def test_alibi_slopes_are_the_authors(n_heads: int, slopes: list[float]) -> None:
    assert Alibi(d_model=D, n_heads=n_heads, d_head=K, causal=True).slopes() == slopes


@pytest.mark.parametrize("n_heads", range(1, 33))
def test_alibi_slopes_are_positive_and_distinct_for_any_number_of_heads(n_heads: int) -> None:
    slopes = Alibi(d_model=D, n_heads=n_heads, d_head=K, causal=True).slopes()
    assert len(set(slopes)) == n_heads
    assert 0 < min(slopes) <= max(slopes) < 1


@pytest.mark.parametrize(
    ("causal", "expected"),
    [
        (
            False,
            {0: 0, -1: 1, 1: 17, -7: 7, -8: 8, 8: 24, -16: 10, -32: 12, -64: 14, -127: 15, -128: 15, 900: 31},
        ),
        (True, {0: 0, 1: 0, 5: 0, -1: 1, -15: 15, -16: 16, -32: 21, -64: 26, -127: 31, -128: 31, -900: 31}),
    ],
)
def test_relative_buckets_are_those_of_t5(causal: bool, expected: dict[int, int]) -> None:
    position = RelativeBias(d_model=D, n_heads=H, d_head=K, causal=causal, n_buckets=32, max_distance=128)
    assert dict(zip(expected, position.bucket(torch.tensor(list(expected))).tolist(), strict=True)) == expected


@pytest.mark.parametrize("causal", [False, True])
def test_every_bucket_is_the_one_that_the_formula_says(causal: bool) -> None:
    position = RelativeBias(d_model=D, n_heads=H, d_head=K, causal=causal, n_buckets=32, max_distance=128)
    offsets = list(range(-300, 301))
    assert position.bucket(torch.tensor(offsets)).tolist() == [bucket(o, causal, 32, 128) for o in offsets]


@pytest.mark.parametrize(("n_buckets", "max_distance", "starts"), [(36, 50, {27: 30}), (12, 162, {8: 18, 10: 54})])
def test_a_bucket_starts_where_the_formula_reaches_it_exactly(
    n_buckets: int, max_distance: int, starts: dict[int, int]
) -> None:
    """Check ties, which the rounding of the logarithm must not decide."""
    position = RelativeBias(D, H, K, causal=True, n_buckets=n_buckets, max_distance=max_distance)
    for wanted, start in starts.items():
        assert position.bucket(torch.tensor([1 - start, -start])).tolist() == [wanted - 1, wanted]


def test_buckets_do_not_depend_on_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    def buckets() -> list[int]:
        position = RelativeBias(D, H, K, causal=True, n_buckets=36, max_distance=50)
        return position.bucket(-torch.arange(100)).tolist()

    here, log = buckets(), torch.Tensor.log
    for to in (0.0, math.inf):
        monkeypatch.setattr(torch.Tensor, "log", lambda x, to=to: torch.nextafter(log(x), torch.tensor(to)))
        assert buckets() == here


def test_compilation_does_not_change_buckets() -> None:
    position = RelativeBias(D, H, K, causal=False)
    offsets = torch.arange(-40, 40)
    compiled = torch.compile(position.bucket, backend="eager", fullgraph=True)
    assert torch.equal(compiled(offsets), position.bucket(offsets))
