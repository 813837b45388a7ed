"""Recreate the golden checkpoint, a briefly trained small model, and the file with its translations.

The golden checkpoint normally stays unchanged from release to release, because old checkpoints must still load.
"""

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hostile import run, saved

from diglot.checkpoint import file as checkpoint
from diglot.inference.translator import Translator

GOLDEN = Path(__file__).parent / "golden"
LINES = [
    "Ler nin gaser.",
    "Ka gun {name} ne?",
    "",
    "Foz su femim une paze in le duze.",
    "Los pez sanos ta puros {name}.",
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        words = ["run.updates=1500", "run.validate_every=500", "scheduler.lr=2e-2", "scheduler.warmup=100"]
        words += ["search.max_len_a=2.0", "search.max_len_b=20"]
        made = run(Path("run"), *words)
        shutil.copyfile(made / "best.ckpt", GOLDEN / "golden.ckpt")
    saved(GOLDEN / "golden_1.ckpt", checkpoint.read(GOLDEN / "golden.ckpt"))
    translator = Translator.load(GOLDEN / "golden.ckpt", device="cpu")
    found = {"lines": LINES} | {f"beam {n}": translator.translate_all(LINES, beam=n) for n in (1, 4)}
    (GOLDEN / "golden.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
