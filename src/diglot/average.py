"""diglot-average: average checkpoints of one model into a checkpoint."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.start import start

    start("average")


from pathlib import Path

from omegaconf import DictConfig

from diglot.averaging import average, members_of
from diglot.config import command, resolved, trusted
from diglot.suggestion import printable, reading
from diglot.training.console import quiet


@command("average")
def main(config: DictConfig) -> None:
    quiet()
    wanted = resolved(config)
    output = Path(config.output).expanduser()
    files = members_of(wanted["checkpoint"], config.which, config.n)
    trust = trusted(config)
    record = average(files, output, trust)
    print(f"The mean of {len(record['mean_of'])} checkpoints:")
    for file, member in zip(files, record["mean_of"], strict=True):
        print(f"    {printable(file)}" + (f", update {member['update']:,}" if member["update"] is not None else ""))
    print(f"Made {printable(output)}, which has no scores yet. Next:  {reading('evaluate', output, trust)}")
