"""Speed of decoding: diglot, CTranslate2 with the same weights, and Hugging Face's `generate` on a model of equal size.

    python benchmarks/decode.py [--threads 1] [--rounds 5] [--sentences 256] [--checkpoint RUN --input FILE]

diglot translates in float32, and in bfloat16 and int8 if the CPU is faster in these; CTranslate2 in float32 and int8.
All engines translate the same sentences in turn, by default on one thread, in batches of 64. Without a checkpoint, the
model has 3 + 3 layers, d_model 256, 4 heads, d_ff 1,024, a vocabulary of 8,000 and random weights, and each output has
exactly 15 tokens. With a checkpoint, output lengths are free, and Hugging Face is left out.

The figures are sentences per CPU second (median over the rounds), and the median of the rounds' ratios to diglot, which
other load on the machine hardly affects. Outputs are compared with those of diglot in float32. CTranslate2 needs
`pip install ctranslate2`, Hugging Face `pip install transformers`; a missing one is reported and left out.
"""

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diglot.system.glibc import keep_freed_memory  # before torch: see diglot.threads

# isort: split
import torch
from hydra import compose, initialize_config_dir

from diglot.checkpoint import file as checkpoint
from diglot.config import CONF, build
from diglot.data.text import read_lines
from diglot.decoding import BeamSearch, SpecialIds
from diglot.decoding.layout import Precision, check_precision, float32_kind, pack_for_decoding
from diglot.errors import UserError
from diglot.model import Transformer

LENGTH, BATCH, VOCABULARY = 15, 64, 8000
SPECIAL = SpecialIds(pad=0, unk=1, bos=2, eos=3)
OURS: dict[str, Precision] = {"diglot": "float32", "diglot bfloat16": "bfloat16", "diglot int8": "int8"}
Sources = list[list[int]]
Run = Callable[[Sources, int], Any]  # sources without </s> and beam size


def random_model() -> Transformer:
    sizes = ["d_model=256", "n_heads=4", "d_ff=1024", "n_encoder_layers=3", "n_decoder_layers=3", "tying=all"]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("train", [f"model.{size}" for size in sizes] + ["model/position=sinusoidal"])
    torch.manual_seed(1)
    return build(config.model, "model", src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY).eval()


class RandomPieces:
    """The part of a tokenizer's interface that the converter needs."""

    pad_id, unk_id, bos_id, eos_id = SPECIAL
    src_vocab_size = tgt_vocab_size = VOCABULARY

    def pieces(self, ids: Any, side: str) -> list[str]:
        return [["<pad>", "<unk>", "<s>", "</s>"][i] if i < 4 else f"▁{i}" for i in ids]


def random_sources(n: int) -> Sources:
    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(LENGTH - 7, LENGTH + 8, (n,), generator=random).tolist()
    return [torch.randint(4, VOCABULARY, (length,), generator=random).tolist() for length in lengths]


def padded(sources: Sources) -> torch.Tensor:
    rows = [torch.tensor([*source, SPECIAL.eos]) for source in sources]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=SPECIAL.pad)


def ours(model: Transformer, limits: dict[str, Any]) -> Run:
    def run(sources: Sources, beam: int) -> list[list[int]]:
        src = padded(sources)
        search = BeamSearch(beam_size=beam, length_penalty="mean" if beam > 1 else 0.0, **limits)
        return [best.tokens for best, *_ in search(model, src, src != SPECIAL.pad, SPECIAL)]

    return run


def ctranslate2_run(folder: Path, compute_type: str, threads: int, tokenizer: Any, limits: dict[str, Any]) -> Run:
    import ctranslate2

    from diglot.export.parity import options

    engine = ctranslate2.Translator(str(folder), compute_type=compute_type, intra_threads=threads, inter_threads=1)
    pieces = tokenizer.pieces(range(tokenizer.tgt_vocab_size), "tgt")
    ids = {piece: i for i, piece in enumerate(pieces)}

    def run(sources: Sources, beam: int) -> list[list[int]]:
        most = int(limits["max_len_a"] * max(map(len, sources)) + limits["max_len_b"])
        found = engine.translate_batch(
            [[pieces[i] for i in source] for source in sources],
            beam_size=beam,
            length_penalty=1,  # the mean log-probability
            max_batch_size=0,
            **options(tokenizer) | {"min_decoding_length": limits.get("min_len_b", 0), "max_decoding_length": most},
        )
        return [[ids[piece] for piece in each.hypotheses[0]] for each in found]

    return run


def hugging_face(limits: dict[str, Any]) -> Run:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": 3, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 1024}
    ids = {"pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 2, "decoder_start_token_id": 2}
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY, d_model=256, **sides, **ids, scale_embedding=True, forced_eos_token_id=None
    )
    model = transformers.MarianMTModel(config).eval()

    @torch.inference_mode()
    def run(sources: Sources, beam: int) -> Any:
        src = padded(sources)
        return model.generate(
            input_ids=src,
            attention_mask=(src != 0).long(),
            num_beams=beam,
            do_sample=False,
            min_new_tokens=limits["min_len_b"],
            max_new_tokens=limits["max_len_b"],
        )

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--checkpoint")
    parser.add_argument("--input")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    if options.checkpoint:
        loaded = checkpoint.load(options.checkpoint)
        model, tokenizer = loaded.model, loaded.tokenizer
        lines = [line for line in read_lines(options.input) if line.strip()][: options.sentences]
        sources = [source.ids for source in tokenizer.encode(lines, loaded.record["tgt_lang"])]
        limits: dict[str, Any] = {"max_len_a": 2.0, "max_len_b": 20}
    else:
        model, sources = random_model(), random_sources(options.sentences)
        limits = {"max_len_a": 0.0, "max_len_b": LENGTH, "min_len_b": LENGTH}
        tokenizer = RandomPieces()
    sources.sort(key=len)
    batches = [sources[i : i + BATCH] for i in range(0, len(sources), BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Run] = {}
        for name, precision in OURS.items():
            try:
                check_precision(precision, torch.device("cpu"))
            except UserError as error:
                print(f"{name} is left out: {error}")
                continue
            packed = copy.deepcopy(model)
            pack_for_decoding(packed, precision)
            runs[name] = ours(packed, limits)
        runs["diglot, not packed"] = ours(model, limits)
        if find_spec("ctranslate2"):
            from diglot.export import ctranslate2

            ctranslate2.write(model, tokenizer, Path(folder))
            for kind in ("float32", "int8"):
                runs[f"CTranslate2 {kind}"] = ctranslate2_run(Path(folder), kind, options.threads, tokenizer, limits)
        else:
            print("CTranslate2 is not installed: left out")
        if options.checkpoint:
            pass  # its model has other weights, so outputs would differ in length
        elif find_spec("transformers"):
            runs["Hugging Face generate"] = hugging_face(limits)
        else:
            print("transformers is not installed: left out")
        print(f"float32 is computed by {float32_kind()} products (DIGLOT_LINEAR)")
        print(f"{len(sources)} sentences, batches of {BATCH}, {options.threads} thread(s), {options.rounds} rounds")
        for beam in (1, 4):
            compare(runs, batches, beam, options.rounds)


def compare(runs: dict[str, Run], batches: list[list[list[int]]], beam: int, rounds: int) -> None:
    """Translate with all engines in turn, and print the speed of each."""
    n_sentences = sum(map(len, batches))
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    outputs: dict[str, list] = {}
    for number in range(rounds + 1):  # round 0 is a warm-up
        for name, run in runs.items():
            start, outputs[name] = time.process_time(), []
            for batch in batches:
                outputs[name] += list(run(batch, beam))
            if number:
                speeds[name].append(n_sentences / (time.process_time() - start))
    for name, each in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(each, speeds["diglot"], strict=True))
        line = f"beam {beam}  {name:22} {statistics.median(each):7.1f} sentences/s  {ratio:5.2f} x ours"
        if not name.startswith("Hugging Face"):
            same = sum(a == b for a, b in zip(outputs[name], outputs["diglot"], strict=True))
            line += f"  {same} of {n_sentences} the same"
        print(line, flush=True)


if __name__ == "__main__":
    main()
