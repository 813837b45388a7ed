"""Show the runs under a folder in TensorBoard, for `make tensorboard`: the address is the last line.

TensorBoard's own script prints notes about TensorFlow and about how it loads data, and a deprecation of a package that
it uses. They say nothing about the runs.
"""

import contextlib
import io
import logging
import os
import sys
import threading
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
warnings.filterwarnings("ignore")

from tensorboard import default, program  # noqa: E402 - warns when it is imported


def address(folder: str, *options: str) -> str:
    """Start TensorBoard in a thread and return its address.

    Args:
        folder: the folder with the runs.
        options: options of TensorBoard's command line.

    Raises:
        TensorBoardServerException: it cannot start.
    """
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    server = program.TensorBoard(default.get_plugins())
    notes = io.StringIO()
    with contextlib.redirect_stderr(notes):
        server.configure(["tensorboard", "--logdir", folder, *options])
        return server.launch()


def main() -> None:
    """Run TensorBoard until Ctrl-C."""
    folder, *options = sys.argv[1:]
    if not Path(folder).is_dir():
        sys.exit(f"tensorboard: LOGDIR={folder}: no such folder; make train creates runs/")
    with contextlib.suppress(KeyboardInterrupt):  # it may come as soon as the address is printed
        try:
            url = address(folder, *options)
        except program.TensorBoardServerException as error:
            sys.exit(f"tensorboard: {' '.join(error.msg.split())}")
        print(f"TensorBoard shows the runs under {folder}/ until you type Ctrl-C, here:\n{url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
