"""The report of a repeated update: whether it is the same, and where its loss comes from."""

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from diglot.data.tokenizer import Side
from diglot.runs.replay import Repeated, Replay, differences
from diglot.system.console import render
from diglot.system.quoting import printable
from diglot.training.flight_recorder import describe
from diglot.training.tracing import Origin, PairLoss, Token, greatest

N_MODULES = 10  # modules with the greatest gradients that are shown
CLOSE = 1e-3  # relative difference of two losses on a GPU, where sums are not deterministic


def is_same(replay: Replay, repeated: Repeated) -> bool:
    """Return whether the loss came out the same: bit for bit, but on a GPU within `CLOSE`."""
    a, b = replay.record.loss, repeated.loss
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    return replay.record.machine.device == "cuda" and math.isclose(a, b, rel_tol=CLOSE)


def difference(replay: Replay, repeated: Repeated) -> str:
    """Return a sentence about a loss that did not come out the same."""
    reasons = differences(replay.record)
    if callbacks := replay.config["callbacks"]:
        reasons.append(f"the run had callbacks ({', '.join(callbacks)}), which a replay does not run")
    if replay.config["run"]["compiled"]:
        reasons.append("the run was compiled, and a replay is not")
    reason = f": {'; '.join(reasons)}" if reasons else ": the checkpoint, the config or the data have changed"
    return (
        f"update {replay.record.update:,} did not come out the same: its loss is {repeated.loss!r}, and the record has "
        f"{replay.record.loss!r}{reason}"
    )


def report(replay: Replay, repeated: Repeated, n_pairs: int) -> str:
    """Return a report for the terminal.

    Args:
        replay: the recorded update.
        repeated: the repeated update.
        n_pairs: number of pairs to show.
    """
    record, trace = replay.record, repeated.trace
    assert trace is not None
    start = f"the checkpoint of update {record.start:,}" if record.start else "the initial weights"
    lines = [f"{describe(record)}; repeated from {start}"]
    if is_same(replay, repeated):
        figures = f"loss {repeated.loss!r}, gradient norm {repeated.gradient_norm!r}"
        lines.append(f"Same loss as in the run, bit for bit: {figures}" if record.loss == repeated.loss else figures)
    if broken := repeated.broken_weights:
        lines.append(f"Weights that were not finite before the update: {_some(broken)}")
    if trace.forward or trace.backward or broken:
        lines.append(f"Forward, first values that are not finite: {_origin(replay, trace.forward, 'forward')}")
        lines.append(f"Backward, first gradient that is not finite: {_origin(replay, trace.backward, 'backward')}")
    lines += ["", "Pairs with the greatest loss per target token:", *_pairs(replay, greatest(trace.pairs, n_pairs))]
    lines += ["", "Gradient norm by module, the greatest first:", *_norms(repeated.norms)]
    return "\n".join(lines)


def _some(names: Sequence[str], n: int = 3) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")


def _origin(replay: Replay, origin: Origin | None, direction: str) -> str:
    if origin is None:
        return "none"
    if direction == "backward":
        place = f"at the output of {origin.module}"
    elif origin.is_own:
        place = f"computed by {origin.module} from finite values"
    else:
        place = f"computed before {origin.module}, which already received them"
    return place if origin.token is None else f"{place}; {_token(replay, origin.token)}"


def _token(replay: Replay, token: Token) -> str:
    (piece,) = replay.tokenizer.pieces([token.id], token.side)
    side = "source" if token.side == "src" else "target"
    return f"pair {token.pair + 1:,}, {side} token {token.position + 1} ({printable(piece)})"


def _text(replay: Replay, pair: int, side: Side) -> str:
    ids = (replay.shards.src if side == "src" else replay.shards.tgt)[pair].tolist()
    return printable(replay.tokenizer.decode(ids, (), side))


def _pairs(replay: Replay, pairs: Sequence[PairLoss]) -> list[str]:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("pair", "loss", "tokens", "worst token"):
        table.add_column(name, justify="left" if name == "worst token" else "right", no_wrap=True)
    table.add_column("source")
    table.add_column("target")
    for pair in pairs:
        labels = [*replay.shards.tgt[pair.pair].tolist(), replay.tokenizer.special.eos]
        (piece,) = replay.tokenizer.pieces([labels[pair.worst]], "tgt")
        cells = [
            f"{pair.pair + 1:,}",
            f"{pair.loss:.2f}",
            str(pair.tokens),
            f"{printable(piece)} ({pair.worst_loss:.2f})",
        ]
        sides = [_text(replay, pair.pair, side) for side in ("src", "tgt")]
        table.add_row(*map(Text, [*cells, *sides]))
    lines = render(table, width=120)
    counts = replay.shards.metadata["corpora"].values()
    if replay.shards.n_versions == 1 and all(count["read"] == count["kept"] for count in counts):
        lines.append("(pair N is line N of the training text, of which nothing was left out)")
    return lines


def _norms(norms: dict[str, float]) -> list[str]:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("module")
    table.add_column("gradient norm", justify="right")
    by_norm = sorted(norms.items(), key=lambda item: (item[1] != item[1], item[1]), reverse=True)
    for module, norm in by_norm[:N_MODULES]:
        table.add_row(module, f"{norm:.4g}")
    return render(table, width=120)
