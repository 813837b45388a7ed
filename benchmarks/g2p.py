"""Letters to phonemes: diglot and Yoyodyne, trained on one split of CMUdict for the same CPU time on one thread.

    python benchmarks/g2p.py MINUTES [FOLDER]    # CPU minutes of each system; default folder: build/g2p

Both systems are rotary Transformers of one size (2 + 2 layers, width 128, inner width 512, 4 heads, dropout 0.1), with
about 200 words in a batch, a peak learning rate of 1e-3 and greedy search. The best checkpoint by dev (diglot: PER,
Yoyodyne: word accuracy) is scored on test. Yoyodyne is installed into an environment of its own in the folder. Without
arguments, only this text is printed.
"""

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import yaml
from rapidfuzz.distance import Levenshtein

PEER = "yoyodyne==0.5.27"
VALIDATE_EVERY = 200  # updates
_LONG_RUN = 10**6  # updates; the CPU time ends it


def train_for(minutes: float, command: Sequence[str], log: Path, has_checkpoint: Callable[[], bool]) -> float:
    """Train until a command has used its CPU time and has written a checkpoint, without which there are no scores.

    Returns:
        The CPU minutes that it used.
    """
    used = 0.0
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=one_thread())
        while process.poll() is None:
            used = cpu_minutes(process.pid) or used
            if used >= minutes and has_checkpoint():
                process.send_signal(signal.SIGTERM)
                process.wait()
            time.sleep(0.5)
    if not has_checkpoint():
        sys.exit(f"{command[0]} ended without a checkpoint: see {log}")
    return used


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "WANDB_MODE": "disabled"}


def cpu_minutes(pid: int) -> float:
    """Return the CPU minutes of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") / 60


def peer_config(folder: Path) -> dict:
    """Return Yoyodyne's config for training and prediction."""
    shape = {"layers": 2, "hidden_size": 512, "dropout": 0.1}
    encoder = {"class_path": "yoyodyne.models.modules.RotaryTransformerEncoder"}
    encoder["init_args"] = {"attention_heads": 4, "embedding_size": 128, **shape}  # type: ignore[assignment]
    model = {f"decoder_{name}": value for name, value in shape.items()}
    model |= {"source_encoder": encoder, "decoder_attention_heads": 4, "embedding_size": 128, "label_smoothing": 0.1}
    model["optimizer"] = {"class_path": "yoyodyne.optimizers.Adam", "init_args": {"lr": 1e-3, "beta2": 0.98}}
    schedule = "yoyodyne.schedulers.WarmupInverseSquareRoot"
    model["scheduler"] = {"class_path": schedule, "init_args": {"warmup_epochs": 1}}
    return {
        "seed_everything": 1,
        "trainer": {"accelerator": "cpu", "max_epochs": 10_000, "val_check_interval": VALIDATE_EVERY},
        "model": {"class_path": "yoyodyne.models.RotaryTransformerModel", "init_args": model},
        "data": {
            "model_dir": str(folder / "peer_run"),
            **{name: str(folder / f"{split}.tsv") for name, split in (("train", "train"), ("val", "dev"))},
            **{"source_sep": "", "target_sep": " ", "tie_embeddings": False, "batch_size": 200},
        },
        "checkpoint": {
            "dirpath": str(folder / "peer_run"),
            "filename": "best",
            "monitor": "val_accuracy",
            "mode": "max",
        },
    }


def peer(folder: Path, minutes: float) -> tuple[float, list[str]]:
    """Train Yoyodyne; return its CPU minutes and its output for test."""
    home, run = folder / "peer", folder / "peer_run"
    if not (home / "bin" / "yoyodyne").exists():
        venv.create(home, with_pip=True)
        same_torch = f"torch=={version('torch').partition('+')[0]}"
        subprocess.run([home / "bin" / "pip", "install", "--quiet", PEER, same_torch], check=True)
        # Yoyodyne requires these two but does not import them, and they may not fit a build of torch for CPUs.
        subprocess.run([home / "bin" / "pip", "uninstall", "--quiet", "-y", "torchvision", "torchaudio"], check=True)
    config = peer_config(folder)
    (folder / "fit.yaml").write_text(yaml.safe_dump(config))
    command = [str(home / "bin" / "yoyodyne"), "fit", "--config", str(folder / "fit.yaml")]
    used = train_for(minutes, command, folder / "peer.log", lambda: any(run.rglob("best*.ckpt")))
    # Without train, the vocabulary is read from the model's folder.
    config["data"] |= {"train": None, "val": None, "predict": str(folder / "test.tsv"), "target_col": 0}
    config["prediction"] = {"path": str(folder / "peer.txt")}
    (folder / "predict.yaml").write_text(yaml.safe_dump(config))
    newest = max(run.rglob("best*.ckpt"), key=lambda path: path.stat().st_mtime)
    command = [command[0], "predict", "--config", str(folder / "predict.yaml"), "--ckpt_path", str(newest)]
    subprocess.run(command, check=True, env=one_thread())
    return used, (folder / "peer.txt").read_text(encoding="utf-8").splitlines()


def ours(folder: Path, minutes: float) -> tuple[float, list[str]]:
    """Train diglot; return its CPU minutes and its output for test."""
    run = folder / f"run_{time.time_ns()}"
    command = [sys.executable, "-m", "diglot"]
    options = ["experiment=g2p_cmudict", "trainer=cpu", "trainer.precision=32-true", "watch=none", "logger=csv"]
    options += [f"run.folder={run}", f"data.cache_dir={folder / 'cache'}", f"run.updates={_LONG_RUN}"]
    options += [f"run.validate_every={VALIDATE_EVERY}"]
    used = train_for(minutes, [*command, "train", *options], folder / "ours.log", (run / "best.ckpt").exists)
    words = folder / "test.words"
    translate = [*command, "translate", f"checkpoint={run}", f"input={words}", f"output={folder / 'ours.txt'}"]
    subprocess.run(translate, check=True, env=one_thread())
    return used, (folder / "ours.txt").read_text(encoding="utf-8").splitlines()


def scores(outputs: Sequence[str], references: Sequence[str]) -> str:
    """Return the word accuracy and the phoneme error rate, with a signature."""
    pairs = [(output.split(), reference.split()) for output, reference in zip(outputs, references, strict=True)]
    accuracy = sum(output == reference for output, reference in pairs) / len(pairs)
    n_phonemes = sum(len(reference) for _, reference in pairs)
    per = sum(Levenshtein.distance(output, reference) for output, reference in pairs) / n_phonemes
    signature = f"nwords:{len(pairs)}|nphonemes:{n_phonemes}|nrefs:1|stress:yes|per:edits/reference"
    return f"word accuracy {accuracy:.2%}  PER {per:.2%}  {signature}"


def main() -> None:
    if len(sys.argv) < 2:
        print(__doc__)
        return
    from diglot.data.cmudict import CmuDict

    minutes = float(sys.argv[1])
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "build/g2p").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    corpus = CmuDict()
    corpus.prepare(folder / "cache")
    splits = corpus.load(folder / "cache")
    for split, pairs in splits.items():
        lines = [f"{word}\t{phonemes}\n" for word, phonemes in zip(pairs.src, pairs.tgt)]
        (folder / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "test.words").write_text("".join(f"{word}\n" for word in splits["test"].src), encoding="utf-8")
    for name, system in (("diglot", ours), (PEER, peer)):
        used, outputs = system(folder, minutes)
        print(f"{name:<18} {used:6.1f} CPU minutes  {scores(outputs, splits['test'].tgt)}", flush=True)


if __name__ == "__main__":
    main()
