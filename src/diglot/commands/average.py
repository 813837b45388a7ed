"""diglot-average: average checkpoints of one model into a checkpoint."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("average")


from pathlib import Path

from omegaconf import DictConfig

from diglot.checkpoint.averaging import average, members_of
from diglot.commands.frame import command
from diglot.config import resolved, trusted
from diglot.system.console import quiet
from diglot.system.quoting import printable, reading


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
