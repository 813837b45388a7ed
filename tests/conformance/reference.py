"""Reference implementation of the models from the papers, in float64, one sentence and one head at a time.

It uses no code of diglot, only a config and the names of the weights. It has no batches, masks or caches; padding is
removed from a sentence.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

Weights = dict[str, Tensor]


def logits_of(
    config: DictConfig, weights: Weights, src: Tensor, tgt: Tensor, src_mask: Tensor, dropped: str | None = None
) -> Tensor:
    """Compute the logits (B, T, V) of a model with this config and these weights (`state_dict`).

    `dropped` is the config key of a dropout probability; everything that this dropout applies to is set to zero.
    """
    kind = {"Transformer": Transformer, "GruAttention": GruAttention}[class_of(config)]
    model = kind(config, {name: value.double() for name, value in weights.items()}, dropped)
    return torch.stack(
        [
            model.decode(sentence, model.encode(tokens[mask]))
            for tokens, mask, sentence in zip(src, src_mask, tgt, strict=True)
        ]
    )


def class_of(node: DictConfig) -> str:
    return node._target_.rpartition(".")[2]


def softmax(scores: Tensor) -> Tensor:
    """Compute the softmax of each row; scores of -inf get the weight 0."""
    powers = (scores - scores.max(-1, keepdim=True).values).exp()
    return powers / powers.sum(-1, keepdim=True)


class Reference:
    def __init__(self, config: DictConfig, weights: Weights, dropped: str | None = None) -> None:
        self.config, self.weights, self.d_model, self.dropped = config, weights, config.d_model, dropped

    def drop(self, share: str, x: Tensor) -> Tensor:
        return x * (share != self.dropped)

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def embed(self, name: str, tokens: Tensor) -> Tensor:
        vectors = self.weights[f"{name}.weight"][tokens]
        return vectors * math.sqrt(self.d_model) if self.config.get("scale_embeddings", True) else vectors

    def output(self, x: Tensor) -> Tensor:
        return self.linear("output", x)


# --------------------------------------------------------------------------------------------------- Transformer


def sinusoid(position: int, d_model: int, base: float = 10_000) -> list[float]:
    """Return the encoding of one position (Vaswani et al., 2017, section 3.5)."""
    angles = [position / base ** (2 * i / d_model) for i in range(d_model // 2)]
    return [wave for angle in angles for wave in (math.sin(angle), math.cos(angle))]


def rotated(x: Tensor, base: float) -> Tensor:
    """Rotate pairs as complex numbers, pair i at position m by the angle m base^(-2i / K) (Su et al., 2021, 3.2)."""
    n, width = x.shape
    angles = torch.tensor([[m * base ** (-2 * i / width) for i in range(width // 2)] for m in range(n)]).double()
    turned = torch.view_as_complex(x.view(n, width // 2, 2)) * torch.complex(angles.cos(), angles.sin())
    return torch.view_as_real(turned).flatten(1)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return the slopes of Press et al., 2022; if n_heads is not a power of two, those of their published code."""
    if n_heads & (n_heads - 1) == 0:
        return [2 ** (-8 * (head + 1) / n_heads) for head in range(n_heads)]
    below = 1 << (n_heads.bit_length() - 1)
    return alibi_slopes(below) + alibi_slopes(2 * below)[::2][: n_heads - below]


def alibi(slope: float, offset: int) -> float:
    """Return the bias of a key `offset` tokens right of a query; keys to the right cost half (diglot's choice)."""
    return -slope * (-offset if offset < 0 else offset / 2)


def t5_bucket(offset: int, causal: bool, n_buckets: int, max_distance: int) -> int:
    """Return the bucket of an offset: half of the buckets hold one distance each, half a range (Raffel et al., 2020).

    See section 2.1 and the authors' code.
    """
    if causal:
        first, distance = 0, max(0, -offset)
    else:
        n_buckets //= 2
        first, distance = n_buckets * (offset > 0), abs(offset)
    exact = n_buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(n_buckets - 1, exact + math.floor(share * (n_buckets - exact)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": lambda x: x.clamp(min=0),
    "GELU": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,  # Hendrycks and Gimpel, 2016
    "SiLU": lambda x: x / (1 + (-x).exp()),
}


def deep_norm_alpha(stack: str, n: int, m: int) -> float:
    """Return alpha for n encoder and m decoder layers (Wang et al., 2022, table of section 4)."""
    return 0.81 * (n**4 * m) ** (1 / 16) if stack == "encoder" else (3 * m) ** (1 / 4)


class Transformer(Reference):
    """Transformer of Vaswani et al., 2017, with the variants of later papers."""

    def part(self, stack: str, name: str) -> Any:
        """Return the config node of a part of a stack: the decoder's own if it has one, else the model's."""
        own = self.config.get(f"decoder_{name}") if stack == "decoder" else None
        return self.config[name] if own is None else own

    def encode(self, tokens: Tensor) -> Tensor:
        x = self.drop("embedding_dropout", self.place("encoder", self.embed("src_embedding", tokens)))
        for layer in (f"encoder.{i}" for i in range(self.config.n_encoder_layers)):
            x = self.sublayer(f"{layer}.self_attention", x, lambda name, y: self.attention("encoder", name, y, y))
            x = self.sublayer(f"{layer}.feed_forward", x, self.feed_forward)
        return self.end("encoder", x)

    def decode(self, tokens: Tensor, memory: Tensor) -> Tensor:
        x = self.drop("embedding_dropout", self.place("decoder", self.embed("tgt_embedding", tokens)))
        for layer in (f"decoder.{i}" for i in range(self.config.n_decoder_layers)):
            x = self.sublayer(f"{layer}.self_attention", x, lambda name, y: self.attention("decoder", name, y, y))
            x = self.sublayer(f"{layer}.cross_attention", x, lambda name, y: self.attention("cross", name, y, memory))
            x = self.sublayer(f"{layer}.feed_forward", x, self.feed_forward)
        return self.output(self.end("decoder", x))

    def place(self, stack: str, x: Tensor) -> Tensor:
        """Add the position encoding to embeddings, if it is an additive one, and normalise the sum if asked to."""
        node = self.part(stack, "position")
        if class_of(node) == "Sinusoidal":
            first, base = node.get("offset", 0), node.get("base", 10_000)
            x = x + torch.tensor([sinusoid(first + index, self.d_model, base) for index in range(len(x))])
        elif class_of(node) == "Learned":
            x = x + self.weights[f"{stack}_position.table.weight"][: len(x)]
        return self.norm(f"{stack}_embedding_norm", x) if self.config.embedding_norm else x

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Apply LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019)."""
        node = self.part(name.partition(".")[0].partition("_")[0], "norm")
        if class_of(node) == "LayerNorm":
            x = x - x.mean(-1, keepdim=True)
        y = x / ((x**2).mean(-1, keepdim=True) + node.eps).sqrt() * self.weights[f"{name}.weight"]
        return y + self.weights[f"{name}.bias"] if class_of(node) == "LayerNorm" else y

    def sublayer(self, name: str, x: Tensor, run: Callable[[str, Tensor], Tensor]) -> Tensor:
        """Run a sublayer with its skip connection and norms."""
        stack, inner = name.partition(".")[0], f"{name}.sublayer"
        node = self.part(stack, "residual")
        match class_of(node):
            case "PostNorm":
                return self.norm(f"{name}.norm", x + self.drop("dropout", run(inner, x)))
            case "PreNorm":
                return x + self.drop("dropout", run(inner, self.norm(f"{name}.norm", x)))
            case "SandwichNorm":  # Ding et al., 2021
                y = self.norm(f"{name}.out_norm", run(inner, self.norm(f"{name}.norm", x)))
                return x + self.drop("dropout", y)
            case "DeepNorm":
                proposed = deep_norm_alpha(stack, self.config.n_encoder_layers, self.config.n_decoder_layers)
                alpha = proposed if node.alpha is None else node.alpha
                return self.norm(f"{name}.norm", alpha * x + self.drop("dropout", run(inner, x)))
            case unknown:
                raise NotImplementedError(f"the reference does not know {unknown}")

    def end(self, stack: str, x: Tensor) -> Tensor:
        """Apply the final norm if the last sum of the stack is not normalised (Xiong et al., 2020)."""
        needs_norm = class_of(self.part(stack, "residual")) in ("PreNorm", "SandwichNorm")
        return self.norm(f"{stack}_norm", x) if needs_norm else x

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        node = self.part(name.partition(".")[0], "feed_forward")
        bend = ACTIVATIONS.get(class_of(node.activation))
        if bend is None:
            raise NotImplementedError(f"the reference does not know {class_of(node.activation)}")
        up = self.linear(f"{name}.up", x)
        match class_of(node):
            case "FeedForward":
                inner = bend(up)
            case "GatedFeedForward":  # Shazeer, 2020
                inner = bend(self.linear(f"{name}.gate", x)) * up
            case unknown:
                raise NotImplementedError(f"the reference does not know {unknown}")
        return self.linear(f"{name}.down", self.drop("activation_dropout", inner))

    def number(self, key: str, kind: str) -> int | None:
        """Return a number of heads, or their width, for one kind of attention."""
        value = self.config[key]
        return value[kind] if isinstance(value, DictConfig) else value

    def attention(self, kind: str, name: str, x: Tensor, memory: Tensor) -> Tensor:
        """Compute attention of a kind (encoder, decoder, cross); neighbouring heads share keys and values.

        See Ainslie et al., 2023.
        """
        n_heads = self.number("n_heads", kind)
        width = self.number("d_head", kind) or self.d_model // n_heads
        n_shared = n_heads // (self.number("n_kv_heads", kind) or n_heads)
        queries, keys, values = (
            self.linear(f"{name}.{projection}", y).split(width, -1)
            for projection, y in (("query", x), ("key", memory), ("value", memory))
        )
        assert len(queries) == len(keys) * n_shared
        position = None if kind == "cross" else self.part(kind, "position")
        seen = []
        for head in range(n_heads):
            q, k, v = queries[head], keys[head // n_shared], values[head // n_shared]
            if self.config.qk_norm:  # Dehghani et al., 2023
                q, k = self.norm(f"{name}.query_norm", q), self.norm(f"{name}.key_norm", k)
            if position is not None and class_of(position) == "Rotary":
                q, k = rotated(q, position.base), rotated(k, position.base)
            scores = q @ k.T / math.sqrt(width)
            if position is not None:
                scores = scores + self.bias(kind, position, head, n_heads, len(x))
            if kind == "decoder":
                future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
                scores = scores.masked_fill(future, float("-inf"))
            seen.append(self.drop("attention_dropout", softmax(scores)) @ v)
        return self.linear(f"{name}.out", torch.cat(seen, -1))

    def bias(self, stack: str, position: DictConfig, head: int, n_heads: int, n: int) -> Tensor | float:
        match class_of(position):
            case "Alibi":
                slope = alibi_slopes(n_heads)[head]
                return torch.tensor([[alibi(slope, key - query) for key in range(n)] for query in range(n)]).double()
            case "RelativeBias":
                size = (stack == "decoder", position.n_buckets, position.max_distance)
                buckets = torch.tensor([[t5_bucket(key - query, *size) for key in range(n)] for query in range(n)])
                return self.weights[f"{stack}_position.table.weight"][buckets, head]
            case "PositionEncoding" | "Sinusoidal" | "Learned" | "Rotary":
                return 0.0
            case unknown:
                raise NotImplementedError(f"the reference does not know {unknown}")


# ---------------------------------------------------------------------------------------------------------- GRUs


class GruAttention(Reference):
    """RNNsearch (Bahdanau et al., 2015) with the gated unit of Cho et al., 2014, as documented by torch.nn.GRU."""

    def unit(self, name: str, suffix: str, x: Tensor, state: Tensor) -> Tensor:
        """Compute one step of a GRU: reset gate, update gate and candidate."""
        of_x, of_state = (
            (self.weights[f"{name}.weight_{side}{suffix}"] @ y + self.weights[f"{name}.bias_{side}{suffix}"]).chunk(3)
            for side, y in (("ih", x), ("hh", state))
        )
        reset, update = (1 / (1 + (-of_x[i] - of_state[i]).exp()) for i in (0, 1))
        candidate = torch.tanh(of_x[2] + reset * of_state[2])
        return (1 - update) * candidate + update * state

    def read(self, name: str, vectors: list[Tensor]) -> list[Tensor]:
        states = [torch.zeros(self.config.d_hidden, dtype=torch.float64)]
        for x in vectors:
            states.append(self.unit(name, "_l0", x, states[-1]))
        return states[1:]

    def encode(self, tokens: Tensor) -> Tensor:
        vectors = list(self.embed("src_embedding", tokens))
        there, back = self.read("reader", vectors), self.read("backward_reader", vectors[::-1])[::-1]
        return torch.stack([torch.cat(both) for both in zip(there, back, strict=True)])

    def decode(self, tokens: Tensor, memory: Tensor) -> Tensor:
        state = torch.tanh(self.linear("first_state", memory[0, self.config.d_hidden :]))
        rows = []
        for x in self.embed("tgt_embedding", tokens):
            query = self.linear("attention.query", state)
            energies = [torch.tanh(query + self.linear("attention.key", place)) for place in memory]
            scores = torch.stack([self.linear("attention.score", energy)[0] for energy in energies])
            seen = softmax(scores) @ memory
            state = self.unit("writer", "", torch.cat((x, seen)), state)
            pairs = self.linear("readout", torch.cat((state, x, seen))).tolist()
            maxout = [max(pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
            rows.append(self.output(torch.tensor(maxout, dtype=torch.float64)))
        return torch.stack(rows)
