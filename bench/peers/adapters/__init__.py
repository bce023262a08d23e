"""The peers that save memory, by the name that the command line uses."""

from peers.adapters.base import Peer
from peers.adapters.fast_safetensors import FastSafetensors
from peers.adapters.icechunk_zarr import Icechunk, IcechunkRaw
from peers.adapters.jax_orbax import Orbax, OrbaxAsync, OrbaxRaw
from peers.adapters.model_streamer import ModelStreamer
from peers.adapters.numpy_savez import Savez
from peers.adapters.outlive_job import Outlive, OutliveCopy, OutliveNone
from peers.adapters.pickle5 import Pickle
from peers.adapters.safetensors_file import Safetensors
from peers.adapters.torch_dcp import Dcp, DcpAsync
from peers.adapters.torch_save import TorchSave

PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        Outlive,
        OutliveNone,
        OutliveCopy,
        Savez,
        Pickle,
        Safetensors,
        FastSafetensors,
        ModelStreamer,
        Icechunk,
        IcechunkRaw,
        Orbax,
        OrbaxAsync,
        OrbaxRaw,
        TorchSave,
        Dcp,
        DcpAsync,
    )
}

__all__ = ["PEERS", "Peer"]
