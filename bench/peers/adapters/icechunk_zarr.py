"""Icechunk: Zarr arrays in a repository whose commits are transactions."""

from pathlib import Path
from typing import Any, ClassVar

from peers.adapters.base import Peer, Wait
from peers.state import Arrays


class Icechunk(Peer):
    """`zarr.create_array` in a session, and its `commit`, with the defaults."""

    name = "icechunk"
    title = "Zarr in Icechunk"
    packages = ("icechunk", "zarr", "numpy")
    note = "Every commit is kept, as its users have it, also where others overwrite."
    compressors: ClassVar[Any] = "auto"

    def __init__(self, root: Path, *, keep: bool) -> None:
        """Opens the repository, or creates it."""
        super().__init__(root, keep=keep)
        import icechunk

        self._repository = icechunk.Repository.open_or_create(
            icechunk.local_filesystem_storage(str(root))
        )

    def save(self, state: Any) -> Wait:
        """Writes the arrays, and commits them."""
        import zarr

        session = self._repository.writable_session("main")
        for name, array in state.items():
            zarr.create_array(
                session.store,
                name=name,
                data=array,
                overwrite=True,
                compressors=self.compressors,
            )
        session.commit("checkpoint")
        return _nothing

    def restore(self, into: None = None) -> Arrays:
        """Reads the arrays of the newest commit."""
        import zarr

        session = self._repository.readonly_session("main")
        group = zarr.open_group(session.store, mode="r")
        arrays: dict[str, Any] = {name: array[...] for name, array in group.arrays()}
        return arrays


class IcechunkRaw(Icechunk):
    """Icechunk without zstd."""

    name = "icechunk-raw"
    title = "Zarr in Icechunk, without zstd"
    note = ""
    compressors = None


def _nothing() -> None:
    """Returns at once, since a commit is complete when it returns."""
