"""diglot-sweep: train once for each of several choices, each job in its own process, and compare the results."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("sweep")


import sys

from diglot.commands.train import main as train


def main() -> None:
    """Run `diglot-train -m ...`."""
    sys.argv.insert(1, "--multirun")
    train()
