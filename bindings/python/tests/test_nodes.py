"""A pool on a storage node."""

import subprocess
from pathlib import Path

import numpy as np

import outlive


def test_a_pool_lives_on_a_node(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    command = ["outlive", "node", "serve", "--data", str(data), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as node:
        assert node.stdout is not None
        try:
            url = next(word for word in node.stdout.readline().split() if "node://" in word)
            values = np.arange(100_000)
            with outlive.open(f"{url}/team/pool").job("a") as job:
                job.save({"values": values}, wait=True)
            with outlive.open(f"{url}/team/pool", create=False).job("a") as job:
                assert (job.restore()["values"] == values).all()
        finally:
            node.terminate()
    assert list(data.rglob("pool.toml")), "the node has the pool"
