"""diglot-export: write the model of a checkpoint for CTranslate2, for transformers or peft, or as safetensors."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("export")


from pathlib import Path
from typing import Literal

from diglot.checkpoint import file as checkpoints
from diglot.commands.frame import command
from diglot.config import trusted
from diglot.errors import UserError
from diglot.export.folder import check_replaceable
from diglot.export.writing import CHECKED, export
from diglot.system.quoting import printable


@command("export")
def main(
    *,
    checkpoint: str,
    format: Literal["ctranslate2", "huggingface", "peft", "safetensors"],
    output: str | None,
    check: int | None,
    input: str | None,
    trust: str | list[str],
) -> None:
    path = checkpoints.find(checkpoint)
    if check is not None and check < 0:
        raise UserError(f"check={check}: must not be negative")
    if format in ("peft", "safetensors"):
        for key, value in {"check": check or None, "input": input}.items():
            if value is not None:
                raise UserError(f"{key}={value}: not used with format={format}, which compares no translations")
    folder = Path(output).expanduser() if output else checkpoints.output_home(path) / format
    check_replaceable(folder)
    loaded = checkpoints.load(path, trusted({"trust": trust}))
    print(
        printable(
            "\n".join(export(loaded, format, folder, "format", CHECKED if check is None else check, input)), keep="\n"
        )
    )
