"""Speed of preparing text, compared with SentencePiece alone in the same number of processes.

    python benchmarks/preparation.py [LINES] [PROCESSES] [FOLDER]    # default: 3e6 lines, 2 processes, temporary folder

Lines consist of random words of the sample corpus, 12 on average. SentencePiece encodes them from memory, each process
its share, and discards the result. Preparation reads them from files, cleans, tokenises, and writes memory-mapped
files.
"""

import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import sentencepiece


def alone(model: bytes, path: str, part: int, parts: int, gate: "multiprocessing.synchronize.Barrier") -> None:
    """Encode one process's share of the lines of two files."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    lines = [
        line for side in ("src", "tgt") for line in Path(f"{path}.{side}").read_text("utf-8").splitlines()[part::parts]
    ]
    gate.wait()
    for start in range(0, len(lines), 20_000):
        processor.encode(lines[start : start + 20_000], num_threads=1)
    gate.wait()


def private(process: str) -> float:
    """Return the private memory of a process (RssAnon) in MB."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # the process has ended
        return 0.0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0) / 1024


def main() -> None:
    from diglot.data.corpus import Sample
    from diglot.data.preparation import Cleaning, prepare
    from diglot.data.text import PairFiles
    from diglot.data.tokenizer import TokenizerTrainer

    n_lines = int(float(sys.argv[1])) if len(sys.argv) > 1 else 3_000_000
    n_processes = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as name:
        folder, random = Path(name), np.random.default_rng(1)
        sample = Sample().load(Path())["train"]
        tokenizer, _ = TokenizerTrainer(model_type="unigram", vocab_size=900, placeholder=r"\{[^{}\s]+\}").train(
            sample, folder
        )
        for side, text in (("src", sample.src), ("tgt", sample.tgt)):
            words = np.array(" ".join(text).split())
            with (folder / f"train.{side}").open("w", encoding="utf-8") as file:
                for start in range(0, n_lines, 100_000):
                    lengths = random.integers(4, 21, min(100_000, n_lines - start))
                    drawn = iter(words[random.integers(0, len(words), int(lengths.sum()))].tolist())
                    file.writelines(" ".join(next(drawn) for _ in range(n)) + "\n" for n in lengths)
        path = str(folder / "train")

        context = multiprocessing.get_context("spawn")
        gate = context.Barrier(n_processes + 1)
        workers = [
            context.Process(target=alone, args=(tokenizer.model, path, part, n_processes, gate))
            for part in range(n_processes)
        ]
        for worker in workers:
            worker.start()
        gate.wait()
        began = time.perf_counter()
        gate.wait()
        bare = time.perf_counter() - began
        for worker in workers:
            worker.join()

        most = {"own": 0.0, "process": 0.0}  # MB
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.5):
                most["own"] = max(most["own"], private("self"))
                children = [
                    child for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()
                ]
                most["process"] = max([most["process"], *map(private, children)])

        threading.Thread(target=watch).start()
        began = time.perf_counter()
        shards = prepare(
            PairFiles("train", [(f"{path}.src", f"{path}.tgt")]),
            tokenizer,
            folder,
            max_len=256,
            cleaning=Cleaning(control=True, identical=True, max_ratio=9.0),
            n_processes=n_processes,
        )
        whole = time.perf_counter() - began
        done.set()
    print(
        f"{n_lines:,} pairs, {n_processes} processes: SentencePiece alone {bare:.1f} s, {n_lines / bare:,.0f} pairs/s; "
        f"prepared in {whole:.1f} s ({n_lines / whole:,.0f} pairs/s), {bare / whole:.0%} of its rate; "
        f"{len(shards.src):,} kept; private memory at most {most['own']:.0f} MB, of a process {most['process']:.0f} MB"
    )


if __name__ == "__main__":
    main()
