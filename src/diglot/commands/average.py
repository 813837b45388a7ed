"""diglot-average: average checkpoints of one model into a checkpoint."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("average")


from pathlib import Path
from typing import Literal

from diglot.checkpoint.averaging import average, members_of
from diglot.commands.frame import command
from diglot.config import trusted
from diglot.system.console import quiet
from diglot.system.quoting import printable, reading


@command("average")
def main(
    *,
    checkpoint: str | list[str],
    which: Literal["last", "best"] | None,
    n: int | None,
    output: str,
    trust: str | list[str],
) -> None:
    quiet()
    path = Path(output).expanduser()
    files = members_of(checkpoint, which, n)
    modules = trusted({"trust": trust})
    record = average(files, path, modules)
    print(f"The mean of {len(record['mean_of'])} checkpoints:")
    for file, member in zip(files, record["mean_of"], strict=True):
        print(f"    {printable(file)}" + (f", update {member['update']:,}" if member["update"] is not None else ""))
    print(f"Made {printable(path)}, which has no scores yet. Next:  {reading('evaluate', path, modules)}")
