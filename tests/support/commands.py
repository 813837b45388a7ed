"""Run commands in tests and read their curves."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from support import warm

ROOT = Path(__file__).parents[2]
# A run that learns something, with all callbacks of the default watch.
LEARNING = ("data=sample", "trainer=cpu", "model.d_model=96", "model.d_ff=384", "model.dropout=0.0", "search=greedy")
# A short run. It skips images and long outputs, which would take five sixths of its time.
SMALL = (*LEARNING, "model.d_model=48", "model.d_ff=96", "watch=none", "search.max_len_a=0.0", "search.max_len_b=4")


def type_command(
    *words: str, cwd: Path, stdin: str | bytes | None = None, code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """Run a console script in `cwd` on one thread, and check its exit status."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    with tempfile.TemporaryDirectory() as folder:
        given, said, warned = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
        given.write_bytes(stdin.encode() if isinstance(stdin, str) else stdin or b"")
        streams = [str(given), str(said), str(warned)]
        command = words[0].removeprefix("diglot-")
        status = warm.run(command, list(words[1:]), cwd=str(cwd), environment=environment, streams=streams)
        done = subprocess.CompletedProcess(words, status, said.read_bytes(), warned.read_bytes())
    assert status == code, done.stdout.decode() + done.stderr.decode()
    return done


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return the curves in a run's folder as values by step, and check that no step occurs twice."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        values = events.Scalars(tag)
        name = re.sub(r"^\d_", "", tag)  # TensorBoard's order of the groups
        found[name] = {event.step: event.value for event in values}
        assert len(found[name]) == len(values), f"{tag} stands twice at a step"
    return found
