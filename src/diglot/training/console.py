"""What a run says, where it goes, and what libraries would say in between."""

import logging
import warnings
from pathlib import Path

import sentencepiece


class PrintHandler(logging.Handler):
    """Prints to whatever standard output is now: a progress bar puts itself in between."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


def quiet() -> None:
    """Show our own messages, and of the libraries' only what a user can act on."""
    logger = logging.getLogger("diglot")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [PrintHandler()]
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sentencepiece.set_min_log_level(2)
    for message in (
        ".*does not have many workers.*",  # batches are collated from memory in microseconds
        ".*The `srun` command is available.*",
        ".*Checkpoint directory .* exists.*",
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*Trying to infer the `batch_size`.*",
        ".*Experiment logs directory .* exists.*",  # the run's own folder, just made
        ".*sync_dist=True.*",  # dev scores are gathered before they are logged, and so equal on all processes
        ".*The number of training batches.*smaller than the logging interval.*",
    ):
        warnings.filterwarnings("ignore", message=message)


def log_to(file: Path) -> None:
    """Keep our messages in a file too."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger("diglot").addHandler(handler)
