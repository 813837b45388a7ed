"""diglot-translate: translate lines of text, one output line per input line."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("translate")


import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from omegaconf import DictConfig, OmegaConf

from diglot.checkpoint import file as checkpoints
from diglot.commands.frame import command
from diglot.commands.output import refuse_same, written
from diglot.config import build, mistakes, resolved, trusted
from diglot.data.text import EXTRACT, read_blocks, refuse_address, sentence_blocks, split_lines
from diglot.decoding.layout import Precision
from diglot.errors import UserError
from diglot.inference.html_page import page
from diglot.inference.translator import Translation, Translator, as_ensemble
from diglot.system.glibc import keep_freed_memory
from diglot.system.masking import masked
from diglot.system.progress import step
from diglot.system.quoting import printable

WINDOW = 10_000  # lines that are read, sorted by length and translated at a time

Lines = list[str]
Format = Literal["text", "json"]


@command("translate")
def main(
    *,
    checkpoint: str | list[str],
    input: str | None,
    prefix: str | None,
    output: str | None,
    format: Format,
    alignments: str | None,
    html: str | None,
    too_long: Literal["pieces", "cut"],
    interactive: bool | None,
    tokens_per_batch: int,
    search: DictConfig,
    src_lang: str | None,
    tgt_lang: str | None,
    device: str | None,
    precision: Precision,
    trust: str | list[str],
) -> None:
    keep_freed_memory()
    paths = [checkpoint] if isinstance(checkpoint, str) else checkpoint
    if not paths:
        raise UserError("checkpoint=[]: names no checkpoint")
    files = {"output": output, "html": html}
    inputs = {f"checkpoint {path}": checkpoints.find(path) for path in paths}
    refuse_same(files, inputs | {"input": input, "prefix": prefix})
    modules = trusted({"trust": trust, "search": resolved(search)})
    loaded = [checkpoints.load(path, modules) for path in paths]
    combined = loaded[0] if len(loaded) == 1 else as_ensemble(loaded)
    translator = load_translator(combined, search, device, tgt_lang, precision, src_lang)
    check_options(
        translator,
        tokens_per_batch=tokens_per_batch,
        format=format,
        alignments=alignments,
        html=html,
        prefix=prefix,
        input=input,
    )
    is_typed = input is None and sys.stdin.isatty()
    is_interactive = is_typed if interactive is None else interactive and input is None
    if is_typed:
        print("Translating what you type; end with Ctrl-D.", file=sys.stderr)
    description = printable(f"translating {input or 'standard input'}")
    n_lines = n_cut = n_near_ties = 0

    def records() -> Iterator[dict[str, Any]]:
        """Translate and write each line, and yield its record if the output needs one."""
        nonlocal n_lines, n_cut, n_near_ties
        progress = nullcontext(lambda done: None) if is_interactive else step(description)
        with written(output) as write, progress as advance:
            for lines, prefixes in windows(input, prefix, 1 if is_interactive else WINDOW):
                results = translator.n_best(
                    lines,
                    prefixes=prefixes,
                    tokens_per_batch=tokens_per_batch,
                    too_long=too_long,
                    attention=alignments is not None or html is not None,
                    first_line=n_lines + 1,
                    advance=advance,
                )
                for line, of_line in zip(lines, results, strict=True):
                    n_lines += 1
                    n_cut += of_line[0].cut
                    n_near_ties += of_line[0].near_tie
                    if format == "text":
                        write(f"{of_line[0].text}\n")
                        if html is None:  # no output needs the record
                            continue
                    entry = record(n_lines, line, of_line)
                    if format == "json":
                        write(_json_line(entry, alignments))
                    yield entry

    if html is None:
        deque(records(), maxlen=0)
    else:
        title = masked(f"{translator.src_lang}-{translator.tgt_lang} {', '.join(map(str, paths))}")
        with written(html, "html") as write:
            for text in page(title, records()):
                write(text)
    _report(n_lines, n_cut, n_near_ties, [path for path in (output, html) if path])


def _report(n_lines: int, n_cut: int, n_near_ties: int, files: Sequence[str]) -> None:
    """Report on standard error the numbers of cut outputs and of near ties, and the output files."""
    if n_cut:
        message = f"{n_cut} of {n_lines} outputs were cut by the length limit (search.max_len_a, search.max_len_b)"
        print(message, file=sys.stderr)
    if n_near_ties:
        print(
            f"{n_near_ties} of {n_lines} searches had a near tie, which other batches may decide differently",
            file=sys.stderr,
        )
    for path in files:
        print(f"{n_lines:,} lines: {printable(path)}", file=sys.stderr)


def check_options(
    translator: Translator,
    *,
    tokens_per_batch: int,
    format: Format,
    alignments: str | None,
    html: str | None,
    prefix: str | None,
    input: str | None,
) -> None:
    """Check that the options fit each other and the model.

    Raises:
        UserError: an option is invalid. The message names the key.
    """
    if tokens_per_batch < 1:
        raise UserError(f"tokens_per_batch={tokens_per_batch}: must be positive")
    if format == "text" and html is None:
        options = translator.search.options
        # With a utility, sampling returns only the best sample.
        for key in ("n_best",) if options.get("utility") else ("n_best", "n_samples"):
            if options.get(key, 1) > 1:
                reason = "format=text has one translation per line; type format=json or html=FILE"
                raise UserError(f"search.{key}={options[key]}: {reason}")
    if alignments is not None:
        if format == "text":
            raise UserError(f"alignments={alignments}: format=text has no alignments; type format=json")
        heads = translator.cross_heads()
        if not heads:
            raise UserError(f"alignments={alignments}: this model has no cross-attention")
        if alignments not in ("mean", "all"):
            chosen(alignments, heads)
    if html is not None and len(set(heads := translator.cross_heads())) > 1:
        reason = f"here its layers have {', '.join(map(str, heads))}"
        raise UserError(f"html: the page needs the same number of heads in all cross-attention; {reason}")
    if prefix is not None and input is None:
        raise UserError("prefix: needs input=FILE with the same number of lines")


def chosen(alignments: str, heads: Sequence[int]) -> tuple[int, int]:
    """Return the layer and head, counted from 0, for an option "LAYER-HEAD", counted from 1.

    Args:
        alignments: the option as typed.
        heads: the number of heads in each layer.

    Raises:
        UserError: there is no such layer or head.
    """
    layer, _, head = str(alignments).partition("-")
    if not (layer.isdecimal() and head.isdecimal() and int(layer) and int(head)):
        raise UserError(f"alignments={alignments}: must be mean, all, or a layer and a head like 1-3")
    if int(layer) > len(heads):
        raise UserError(f"alignments={alignments}: this model has {len(heads)} layers of cross-attention")
    if int(head) > heads[int(layer) - 1]:
        raise UserError(f"alignments={alignments}: its layer {layer} has {heads[int(layer) - 1]} heads")
    return int(layer) - 1, int(head) - 1


def windows(input: str | None, prefix: str | None, size: int) -> Iterator[tuple[Lines, Lines | None]]:
    """Yield windows of up to `size` lines to translate, each with its prefixes, or with None if there are none."""
    if input is None:
        n = 0
        while data := typed_lines(size):
            yield split_lines(b"".join(data), "standard input", n), None
            n += len(data)
        return
    refuse_address("input", input)
    lines = chain.from_iterable(sentence_blocks(input, instead=EXTRACT))
    prefixes = None if prefix is None else chain.from_iterable(read_blocks(prefix))
    n = 0
    while window := list(islice(lines, size)):
        n += len(window)
        beginnings = None if prefixes is None else list(islice(prefixes, len(window)))
        if beginnings is not None and len(beginnings) != len(window):
            raise UserError(f"{prefix} has {n - len(window) + len(beginnings):,} lines, and {input} has more")
        yield window, beginnings
    if prefixes is not None and next(prefixes, None) is not None:
        raise UserError(f"{prefix} has more lines than the {n:,} of {input}")


def typed_lines(size: int) -> list[bytes]:
    """Return up to `size` lines of standard input, or an empty list at its end.

    Raises:
        UserError: standard input cannot be read, for example because it is closed or its terminal is gone.
    """
    try:
        return list(islice(sys.stdin.buffer, size))
    except OSError as error:
        raise UserError(f"standard input: cannot be read ({error.strerror}); type input=FILE to read a file") from None


def record(number: int, line: str, translations: Sequence[Translation]) -> dict[str, Any]:
    """Return a line's translations as plain data, except for the attention, which stays a list of arrays."""
    return {
        "line": number,
        "source": line,
        "source_tokens": list(translations[0].source_tokens),
        "near_tie": translations[0].near_tie,
        "hypotheses": [
            {
                "text": t.text,
                "score": t.score,
                "log_prob": sum(t.log_probs),
                "tokens": list(t.tokens),
                "log_probs": list(t.log_probs),
                "cut": t.cut,
                "attention": list(t.attention),
            }
            for t in translations
        ],
    }


def _json_line(of_line: dict[str, Any], alignments: str | None) -> str:
    """Return a record as a line of JSON, with the requested attention of each hypothesis.

    "all" adds all layers and heads as `attention`. Any other option adds one matrix, target tokens by source tokens, as
    `alignment`.
    """
    of_line = {**of_line, "hypotheses": [dict(hypothesis) for hypothesis in of_line["hypotheses"]]}
    for hypothesis in of_line["hypotheses"]:
        layers: list[np.ndarray] = hypothesis.pop("attention")
        if alignments == "all":
            hypothesis["attention"] = [np.round(layer, 6).tolist() for layer in layers]
        elif alignments is not None:
            hypothesis["alignment"] = np.round(chosen_alignment(layers, alignments), 6).tolist() if layers else []
    return json.dumps(of_line, ensure_ascii=False) + "\n"


def chosen_alignment(layers: list[np.ndarray], alignments: str) -> np.ndarray:
    """Return the requested matrix of attention, target tokens by source tokens.

    Raises:
        UserError: there is no such layer or head.
    """
    if alignments == "mean":
        return np.stack([layer.mean(0) for layer in layers]).mean(0)
    layer, head = chosen(alignments, [len(layer) for layer in layers])
    return layers[layer][head]


def load_translator(
    loaded: checkpoints.Checkpoint,
    search: DictConfig,
    device: str | None,
    tgt_lang: str | None,
    precision: Precision,
    src_lang: str | None = None,
) -> Translator:
    """Return a checkpoint's translator. Values in the config's search node override the checkpoint's own search."""
    options = {key: value for key, value in resolved(search).items() if value is not None}
    stored = loaded.record["search"]
    if "_target_" not in options:
        unknown = options.keys() - vars(loaded.search).keys()
        if unknown:
            name = stored["_target_"].rpartition(".")[2]
            raise UserError(
                f"search.{min(unknown)}: the checkpoint's search is {name}, which has no such option; type search=beam"
            )
        options = stored | options
    errors = list(mistakes(options, "search"))
    if errors:
        raise UserError("; ".join(errors))
    return Translator.of(loaded, device, build(OmegaConf.create(options), "search"), tgt_lang, precision, src_lang)
