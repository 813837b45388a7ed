"""A certificate of two runs that do not exist."""

from diglot.certificates.content import Certificate, Environment, Run
from diglot.certificates.making import means, note


def environment() -> Environment:
    """Return an environment of a machine that does not exist."""
    return {
        "diglot": "0.1.0",
        "commit": "0123456789ab",
        "sources": "a" * 64,
        "python": "3.11.7",
        "packages": {"torch": "2.13.0", "sacrebleu": "2.6.0"},
        "machine": {
            "processor": "Abacus 9",
            "capability": "AVX2",
            "cores": 4,
            "threads": 2,
            "gpu": None,
            "system": "Linux x86_64",
        },
    }


def run(seed: int = 1, bleu: float = 30.0) -> Run:
    """Return what a certificate states about a run."""
    scores = [{"name": "BLEU", "value": bleu, "signature": "nrefs:1|tok:13a"}]
    return {
        "name": f"run-{seed}",
        "seed": seed,
        "command": f"make train data=sample seed={seed}",
        "languages": ["de", "en"],
        "parameters": 3_600_000,
        "training": {
            "trained_parameters": 40_000,
            "freeze": [],
            "learning_rates": {"encoder": 0.5},
            "lora": {"rank": 8, "alpha": 16.0, "dropout": 0.0, "on": ["query", "value"], "train": ["norms"]},
            "init_from": "4" * 64,
        },
        "updates": 3000,
        "best_update": 2500,
        "environment": environment(),
        "text": {"train": "1" * 64, "dev": "2" * 64},
        "files": {"config.yaml": f"{seed:064d}", "text/dev.best.en": "3" * 64},
        "validations": [{"update": 500, "loss": 4.5}, {"update": 1000, "loss": 3.25}],
        "dev": scores,  # type: ignore[typeddict-item]
        "test": {"scores": scores, "openings": {"diglot-train": 1}},  # type: ignore[typeddict-item]
        "first_updates": {
            "device": "cpu",
            "threads": 2,
            "precision": "32-true",
            "losses": [9.0, 8.5],
            "missing": None,
        },
    }


def certificate(*bleu: float) -> Certificate:
    """Return a certificate of one run for each BLEU score; by default of one run."""
    runs = [run(seed, value) for seed, value in enumerate(bleu or (30.0,), start=1)]
    mean = means([each["dev"] for each in runs])
    return {
        "diglot_certificate": 1,
        "note": note(len(runs)),
        "environment": environment(),
        "runs": runs,
        "dev": mean,
        "test": mean,
    }
