"""Runs the ranks of programs that use PyTorch, each as a fork of this process.

It imports PyTorch once, which takes longer than most of the programs. It opens no pool itself. Each
line of its input asks for ranks, as JSON, and each line of its output has their exit codes.
"""

import atexit
import json
import os
import sys
import traceback
import warnings
from typing import Any, NoReturn

import torch._dynamo  # `distribute_tensor` imports it
import torch_ranks
import training

import outlive.torch

# Imported only when they are used.
assert outlive.torch.DCPWriter
assert outlive.torch.DCPReader
assert torch._dynamo

PROGRAMS = {"ranks": torch_ranks.main, "training": training.main}


def main() -> None:
    """Serves requests until its input ends."""
    warnings.simplefilter("ignore")  # newer Pythons warn of forks
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        children = []
        for rank in range(request["size"]):
            child = os.fork()
            if child == 0:
                be_rank(request, rank)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def be_rank(request: dict[str, Any], rank: int) -> NoReturn:
    """Runs a program as one rank, with files for its output, and ends this process."""
    os.close(0)
    for number, name in ((1, "out"), (2, "err")):
        path = os.path.join(request["folder"], f"{rank}.{name}")  # noqa: PTH118
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
    where = [str(rank), str(request["size"]), os.path.join(request["folder"], "store")]  # noqa: PTH118
    words = [*where, *request["arguments"]] if request["program"] == "ranks" else None
    code = 0
    try:
        PROGRAMS[request["program"]](words or request["arguments"])
    except BaseException:
        traceback.print_exc()
        code = 1
    # All that the end of the interpreter does, but for seconds of taking PyTorch apart.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
