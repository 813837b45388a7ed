"""diglot-certify: write a certificate of one finished run, or of several that differ by their seeds alone."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("certify")


from pathlib import Path

from diglot.certificates.content import CERTIFICATE, PAGE, as_bytes
from diglot.certificates.making import certify, finished_run
from diglot.certificates.showing import page, scores_as_text
from diglot.commands.frame import command
from diglot.commands.output import refuse_unwritable
from diglot.config import trusted
from diglot.data.text import write_bytes
from diglot.errors import UserError
from diglot.system.console import quiet
from diglot.system.gpu import exclude_cudnn_attention
from diglot.system.quoting import command_line, printable


@command("certify")
def main(*, checkpoint: str | list[str], output: str | None, trust: str | list[str]) -> None:
    quiet()
    exclude_cudnn_attention()
    paths = [checkpoint] if isinstance(checkpoint, str) else checkpoint
    if not paths:
        raise UserError("checkpoint must be given: checkpoint=runs/NAME")
    folders = [finished_run(path) for path in paths]
    folder = Path(output).expanduser() if output else folders[0]
    if folder.suffix in (".json", ".html") or folder.is_file():
        raise UserError(f"output={folder}: must be a folder; {CERTIFICATE} and {PAGE} are written into it")
    refuse_unwritable(folder / CERTIFICATE if folder.is_dir() else folder)
    certificate = certify(folders, trusted({"trust": trust}))
    write_bytes(folder / PAGE, page(certificate).encode())
    write_bytes(folder / CERTIFICATE, as_bytes(certificate))  # last: it is what others read
    print("\n".join(scores_as_text(certificate)))
    for run in certificate["runs"]:
        if reason := run["first_updates"]["missing"]:
            print(f"seed {run['seed']}: without the losses of the first updates: {printable(reason)}")
    check = command_line("verify", certificate=folder / CERTIFICATE)
    print(f"Made {PAGE} and {CERTIFICATE} in {printable(folder)}/. Next:  {check}")
