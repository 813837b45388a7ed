"""Spin time of the OpenMP threads to which PyTorch distributes an operation on a CPU.

A waiting thread of GNU's runtime tests a variable 300,000 times before it sleeps. If other programs run, it often spins
on the core that the thread it waits for needs, and training becomes ten times slower. A short spin costs next to
nothing if no other programs run (benchmarks/training.py).
"""

import os
from collections.abc import MutableMapping

# Environment variables that the runtimes read when they are loaded: for GNU, a number of tests; for LLVM and Intel,
# milliseconds (default 200), where 0 would let a thread sleep after every operation.
SHORT_SPIN = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}


def spin_shortly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set a short spin for this process and its children, unless the user has chosen how threads wait.

    The runtime reads its environment only once, so this must be called before `import torch`.
    """
    has_chosen = any(name in environment for name in (*SHORT_SPIN, "OMP_WAIT_POLICY"))
    if not has_chosen and environment.get("OMP_NUM_THREADS") != "1":  # a single thread never waits
        environment.update(SHORT_SPIN)
