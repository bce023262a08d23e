"""Compares outlive with its peers on one machine: same state, same durability, in turn.

`bench/compare.py` is the command; `docs/benchmarks.md` what it wrote. Peers that hold memory are in
`adapters/`, programs that back up files in `backups/`; each is one module with one protocol.
"""
