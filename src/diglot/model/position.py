"""Position encodings, one class each.

An encoding overrides only the hooks that it needs; the default hooks change nothing. `positions` are absolute, so that
decoding one token at a time with a cache needs no separate code path.
"""

import math

import torch
from torch import Tensor, nn


class PositionEncoding(nn.Module):
    """Base of all encodings; on its own, no position information. All layers of a stack share one instance.

    Args:
        d_model: width D of the token vectors.
        n_heads: number H of heads of the stack's self-attention.
        d_head: width K of a head.
        causal: whether the stack is a decoder, whose self-attention is causal.
    """

    max_positions: int | None = None  # how many positions the encoding supports; None: any number

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool) -> None:
        super().__init__()
        self.d_model, self.n_heads, self.d_head, self.causal = d_model, n_heads, d_head, causal

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add an encoding of positions (T,) to token vectors x (B, T, D)."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys x (B, H, T, K) by their positions (T,)."""
        return x

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Return the bias (H, Q, M) of the attention scores for queries at positions (Q,) and keys at (M,)."""
        return None


def _frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """Return one angular frequency per pair of dimensions, base^(-2i / width), as float32 (width / 2,)."""
    exponents = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    return base**-exponents


def _check_base(base: float) -> None:
    if not 1 < base < math.inf:
        raise ValueError(f"base ({base}) must be above 1, so that angles of later dimensions grow more slowly")


class Sinusoidal(PositionEncoding):
    """Fixed sines and cosines added to the embeddings (Vaswani et al., 2017).

    Args:
        d_model, n_heads, d_head, causal: see PositionEncoding.
        base: base of the geometric sequence of frequencies, base^(-2i / D) for the dimension pair i.
        offset: position of the first token. fairseq and M2M100 (Fan et al., 2021) begin at 2, and their base is
            10000^(D / (D - 2)).

    Raises:
        ValueError: d_model is odd, base is not above 1, or offset is out of range.
    """

    def __init__(
        self, d_model: int, n_heads: int, d_head: int, causal: bool, base: float = 10_000.0, offset: int = 0
    ) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        if d_model % 2:
            raise ValueError(f"d_model ({d_model}) must be even for sinusoidal positions")
        _check_base(base)
        if not 0 <= offset <= MAX_DISTANCE:
            raise ValueError(f"offset ({offset}) must be at least 0 and at most {MAX_DISTANCE}")
        self.base, self.offset = base, offset

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        positions = positions + self.offset
        angles = positions[:, None].float() * _frequencies(self.d_model, self.base, x.device)  # (T, D / 2)
        return x + torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(x.dtype)


class Learned(PositionEncoding):
    """One trained vector per position, added to the embeddings (Gehring et al., 2017).

    Args:
        d_model, n_heads, d_head, causal: see PositionEncoding.
        max_positions: number of positions; later ones have no vector.

    Raises:
        ValueError: max_positions is not positive.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, max_positions: int = 512) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        if max_positions < 1:
            raise ValueError(f"max_positions ({max_positions}) must be positive")
        self.max_positions = max_positions
        self.table = nn.Embedding(max_positions, d_model)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table.weight, std=0.02)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)


class Rotary(PositionEncoding):
    """Rotation of each pair of query and key dimensions by an angle proportional to position (Su et al., 2021).

    Args:
        d_model, n_heads, d_head, causal: see PositionEncoding.
        base: base of the geometric sequence of frequencies.

    Raises:
        ValueError: d_head is odd, or base is not above 1.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, base: float = 10_000.0) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        if d_head % 2:
            raise ValueError(f"d_head ({d_head}) must be even for rotary positions")
        _check_base(base)
        self.base = base

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        # Compute the angles in float32, because bfloat16 cannot represent all integers above 256; cast cos and sin.
        angles = positions[:, None].float() * _frequencies(self.d_head, self.base, x.device)  # (T, K / 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Alibi(PositionEncoding):
    """Linear penalty on the distance of a key, with a different slope per head (Press et al., 2022).

    The paper covers decoders only. In an encoder, equal slopes in both directions could not distinguish a sentence from
    its reversal. So keys to the right of the query get half the penalty of keys at the same distance to the left.
    """

    def slopes(self) -> list[float]:
        """Return one slope per head.

        For H a power of two, head h (from 1) gets 2^(-8h / H). Otherwise, the remaining heads get every other slope of
        the next power of two, as in the authors' code.
        """

        def geometric(n: int) -> list[float]:
            return [2.0 ** (-8 * (i + 1) / n) for i in range(n)]

        power_of_two = 2 ** math.floor(math.log2(self.n_heads))
        return geometric(power_of_two) + geometric(2 * power_of_two)[0::2][: self.n_heads - power_of_two]

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        slopes = torch.tensor(self.slopes(), device=keys.device)
        offset = (keys[None, :] - queries[:, None]).float()  # negative for keys to the left
        distance = torch.where(offset > 0, 0.5 * offset, -offset)
        return -slopes[:, None, None] * distance


# Limits of `RelativeBias`, far above T5's 32 and 128. Building a model computes the start of each bucket. An untrusted
# checkpoint may describe that model, so without limits this could take any amount of time and memory.
MAX_BUCKETS = 2**16
MAX_DISTANCE = 2**31


class RelativeBias(PositionEncoding):
    """Learned bias per head and bucket of distances (T5: Raffel et al., 2020).

    Args:
        d_model, n_heads, d_head, causal: see PositionEncoding.
        n_buckets: number of buckets, at most `MAX_BUCKETS`; an encoder uses half of them for each direction.
        max_distance: distances from this one on share the last bucket; at most `MAX_DISTANCE`.

    Raises:
        ValueError: n_buckets or max_distance is out of range.
    """

    def __init__(
        self, d_model: int, n_heads: int, d_head: int, causal: bool, n_buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        if n_buckets < (minimum := 2 if causal else 4):
            raise ValueError(f"n_buckets ({n_buckets}) must be at least {minimum}")
        if n_buckets > MAX_BUCKETS:
            raise ValueError(f"n_buckets ({n_buckets}) must be at most {MAX_BUCKETS}")
        if not causal and n_buckets % 2:
            raise ValueError(f"n_buckets ({n_buckets}) must be even: an encoder gives each direction half of them")
        n_exact = (n_buckets if causal else n_buckets // 2) // 2
        if max_distance <= n_exact:
            raise ValueError(f"max_distance ({max_distance}) must be above {n_exact}: smaller ones have a bucket each")
        if max_distance > MAX_DISTANCE:
            raise ValueError(f"max_distance ({max_distance}) must be at most {MAX_DISTANCE}")
        self.max_distance = max_distance
        n_logarithmic = (n_buckets if causal else n_buckets // 2) - n_exact
        self.starts = bucket_starts(n_exact, n_logarithmic, max_distance)
        self.table = nn.Embedding(n_buckets, n_heads)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table.weight, std=0.02)

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.table(self.bucket(keys[None, :] - queries[:, None])).permute(2, 0, 1)  # (Q, M, H) -> (H, Q, M)

    def bucket(self, offset: Tensor) -> Tensor:
        """Map offsets (key minus query) to buckets: one per offset when near, logarithmic when far."""
        n_buckets = self.table.num_embeddings
        base = torch.zeros_like(offset)
        if self.causal:
            distance = (-offset).clamp(min=0)
        else:
            n_buckets //= 2
            base = (offset > 0) * n_buckets
            distance = offset.abs()
        n_exact = n_buckets // 2
        starts = torch.tensor(self.starts, device=offset.device)
        return base + distance.clamp(max=n_exact) + torch.bucketize(distance, starts, right=True)


def bucket_starts(n_exact: int, n_logarithmic: int, max_distance: int) -> tuple[int, ...]:
    """Return the smallest distance of each logarithmic bucket of `RelativeBias` after the first, in order.

    The bucket of a distance d is n_exact + n_logarithmic * log(d / n_exact) / log(max_distance / n_exact), rounded
    down. That value is often exactly an integer; then the bucket would depend on how the processor rounds its
    logarithm. A checkpoint must give the same buckets on every machine, so such ties are decided in integer arithmetic.

    Args:
        n_exact: number of distances that have their own bucket.
        n_logarithmic: number of logarithmic buckets.
        max_distance: distances from this one on share the last bucket.
    """
    starts = []
    for bucket in range(1, n_logarithmic):
        start = n_exact * (max_distance / n_exact) ** (bucket / n_logarithmic)
        nearest = round(start)
        if abs(start - nearest) > 1e-12 * start:  # far above the rounding error of float64
            starts.append(math.ceil(start))
            continue
        divisor = math.gcd(bucket, n_logarithmic)
        numerator, denominator = bucket // divisor, n_logarithmic // divisor
        is_reached = nearest**denominator >= max_distance**numerator * n_exact ** (denominator - numerator)
        starts.append(nearest if is_reached else nearest + 1)
    return tuple(starts)
