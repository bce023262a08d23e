"""A file system for fsspec, `outlive://`: programs write files into a pool without code for it.

fsspec finds the class by its name in URLs. docs/fsspec.md says what it promises.
"""

from outlive.fsspec._system import OutliveFileSystem

OutliveFileSystem.__module__ = "outlive.fsspec"

__all__ = ["OutliveFileSystem"]
