"""Builds a trace for `outlive-bench plan` from releases of a public Python package.

    .venv/bin/python bench/plan/build_trace.py --to trace.txt

It downloads the wheels with pip into a cache directory and unpacks them.
`crates/files/examples/trace_of.rs` cuts and deduplicates them, oldest first. Any large package that
changes slowly will do. The default is transformers, whose releases have some 45 MB each.
"""

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGE = "transformers"
VERSIONS = [f"4.{minor}.0" for minor in range(34, 47)]


def unpacked(package: str, version: str, cache: Path) -> Path:
    """Returns the directory of one release, downloaded and unpacked if necessary."""
    tree = cache / f"{package}-{version}"
    if tree.is_dir():
        return tree
    wheels = cache / "wheels" / version
    wheels.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--only-binary", ":all:", "--dest", str(wheels), f"{package}=={version}"]
    subprocess.run(pip, check=True)
    (wheel,) = wheels.glob("*.whl")
    part = tree.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(part)
    # The metadata directory has the version in its name, which would make new paths each time.
    for directory in part.glob("*.dist-info"):
        directory.rename(part / "dist-info")
    part.rename(tree)
    return tree


def main() -> None:
    """Builds the trace."""
    parser = argparse.ArgumentParser(description="Builds a trace from releases of a package.")
    parser.add_argument("--package", default=PACKAGE, help="name of the package")
    parser.add_argument(
        "--versions", nargs="+", default=VERSIONS, help="its versions, oldest first"
    )
    parser.add_argument("--cache", type=Path, default=Path("target/bench-plan"))
    parser.add_argument("--container-bytes", type=int, default=4 << 20)
    parser.add_argument("--to", type=Path, required=True, help="file for the trace")
    args = parser.parse_args()
    trees = [unpacked(args.package, version, args.cache) for version in args.versions]
    command = ["cargo", "run", "--release", "--quiet", "--package", "outlive-files"]
    command += ["--example", "trace_of", "--", str(args.container_bytes), *map(str, trees)]
    with args.to.open("wb") as trace:
        subprocess.run(command, check=True, stdout=trace)


if __name__ == "__main__":
    main()
