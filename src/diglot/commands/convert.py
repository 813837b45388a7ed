"""diglot-convert: rewrite checkpoints of format 1 in format 2."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("convert")


from diglot.checkpoint.conversion import convert, files_of
from diglot.commands.frame import command
from diglot.errors import UserError
from diglot.runs.folder import lock_folder
from diglot.system.quoting import printable


@command("convert")
def main(*, checkpoint: str) -> None:
    convert_all(checkpoint)


def convert_all(checkpoint: str) -> None:
    """Rewrite a checkpoint, or all checkpoints in a run's folder, and print the result for each.

    Raises:
        UserError: another process works in the folder, or some checkpoints cannot be rewritten. In the second case all
            others are rewritten first.
    """
    files = files_of(checkpoint)
    folder = files[0][0].parent
    lock_folder(folder)
    n_converted, damaged = 0, list[str]()
    for names in files:
        named = " = ".join(printable(name.name) for name in names)
        try:
            is_new = convert(names)
        except UserError as error:
            damaged.append(str(error))
            continue
        n_converted += is_new
        size = names[0].stat().st_size / 1e6
        print(f"    {named}: {'rewritten' if is_new else 'already in format 2'}, {size:,.1f} MB")
    print(f"Rewritten in format 2: {n_converted} of {len(files)} checkpoints in {printable(folder)}/")
    if damaged:
        raise UserError("; ".join(damaged))
