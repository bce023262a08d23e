"""Compares outlive with its peers on one machine: same state, same durability, in turn.

`bench/compare.py` is the command, and `docs/benchmarks.md` its result. `adapters/` has the peers
that save memory, and `backups/` the programs that back up files; each is one module with one
protocol.
"""
