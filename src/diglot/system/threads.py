"""How long the threads of OpenMP, over which PyTorch spreads an operation on a CPU, spin while they wait.

A waiting thread of GNU's runtime tests a variable 300,000 times before it sleeps. Beside other work it often spins on
the core that the thread it waits for needs, and training becomes ten times slower. A short spin costs next to nothing
where nothing else runs (benchmarks/training.py).
"""

import os
from collections.abc import MutableMapping

# By the names that the runtimes read, when they are loaded: GNU's, in tests of the variable; LLVM's and Intel's, in
# milliseconds (default 200), of which 0 would let a thread sleep after every operation.
SHORT_SPIN = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}


def spin_shortly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set a short spin for this process and all that it starts, unless the user has chosen how threads wait.

    The runtime reads its environment once, so this has to come before `import torch`.
    """
    has_chosen = any(name in environment for name in (*SHORT_SPIN, "OMP_WAIT_POLICY"))
    if not has_chosen and environment.get("OMP_NUM_THREADS") != "1":  # a single thread waits for none
        environment.update(SHORT_SPIN)
