"""Fine-tuning of a small model of each family of Hugging Face, with all weights and with low-rank adapters.

    python benchmarks/families.py [--updates 120] [--families marian t5 ...]

The models have about 0.1 M random weights, and the tokenizers are trained on the sample corpus, on which each model is
fine-tuned on one thread. The table gives the trained weights, the dev loss before and after (in nats per token, without
tags of languages), dev BLEU, and the CPU time of the command. The last line gives the dev loss of a model that knows
only the frequencies of the tokens; a run that does not reach three quarters of it has not learnt, and the status is 1.

The models are made by the library transformers, which the extra huggingface installs.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from diglot.checkpoint import file as checkpoints
from support.fine_tuned import FAMILIES, KINDS, dev_loss, training_words, unigram_loss
from support.huggingface import trainable_folder

SHARE = 0.75  # of the loss by frequencies


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--updates", type=int, default=120)
    arguments.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    options = arguments.parse_args()
    print("| family | trained | trained weights | updates | loss before | after | BLEU | CPU seconds |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    failed = []
    for family in options.families:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            base = trainable_folder(family, folder / "base")
            before, by_frequency = dev_loss(base, family), unigram_loss(checkpoints.load(base).tokenizer)
            for kind in KINDS:
                results, seconds = fine_tuned(folder, family, kind, options.updates)
                after, bleu = dev_loss(folder / kind / "best.ckpt", family), results["best"]["bleu"]
                numbers = f"{results['trained_parameters']:,} of {results['parameters']:,} | {options.updates:,}"
                print(f"| {family} | {kind} | {numbers} | {before:.2f} | {after:.2f} | {bleu:.1f} | {seconds:.0f} |")
                if after > SHARE * by_frequency:
                    failed.append(f"{family} with {kind}")
    print(f"\nThe loss by the frequencies of the tokens is {by_frequency:.2f}.")
    if failed:
        print(f"Not learnt: {', '.join(failed)}")
    return len(failed) > 0


def fine_tuned(folder: Path, family: str, kind: str, updates: int) -> tuple[dict[str, Any], float]:
    """Fine-tune the model in a folder; return the results of the run and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [*training_words(family, kind, updates), "init_from=base", f"run.folder='{kind}'"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "diglot", "train", *words], cwd=folder, env=environment, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads((folder / kind / "results.json").read_text()), seconds


if __name__ == "__main__":
    sys.exit(main())
