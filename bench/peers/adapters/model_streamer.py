"""The Run:ai model streamer: reads a file of safetensors by several threads."""

from typing import ClassVar

from peers.adapters.safetensors_file import Safetensors
from peers.state import Arrays


class ModelStreamer(Safetensors):
    """`SafetensorsStreamer`, which only reads; `safetensors.numpy.save_file` writes."""

    name = "model-streamer"
    title = "Run:ai model streamer"
    packages = ("runai-model-streamer", "torch", "safetensors", "numpy")
    like: ClassVar[str | None] = "safetensors"
    note = "It only reads: what it saves is saved by safetensors."

    def restore(self, into: None = None) -> Arrays:
        """Reads the arrays into memory of their own."""
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_file(str(self.newest_path()))
            return {name: tensor.numpy() for name, tensor in streamer.get_tensors()}
