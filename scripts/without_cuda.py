"""Lets PyTorch's wheels with CUDA run without the packages of CUDA, on the CPU.

    python scripts/without_cuda.py SITE-PACKAGES

The wheels on the package index are linked with libraries of CUDA, which take 2.5 GB and come as
packages of their own. A program that uses only the CPU calls none of their functions, yet the
loader wants all of them. So this script compiles one library that has each of these functions, and
links it under the name of each missing library. Every function returns the code of CUDA for "no
device", and PyTorch finds no GPU.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

# `cudaErrorNoDevice`, and a failure in all other libraries of CUDA.
_NO_DEVICE = 100
_STUB = "libwithout_cuda.so"
# Symbols with these versions are in libraries of the system.
_OF_SYSTEM = ("GLIBC", "CXXABI", "GCC_", "GOMP_", "OMP_", "LIBNUMA", "libnuma")
# Symbols of the interpreter, and those that the compiler puts into each library.
_ELSEWHERE = ("Py", "_Py", "_ITM_", "__gmon_start__", "__cxa_finalize")


def main(site: Path) -> None:
    """Makes the library, unless nothing is missing."""
    folder = site / "torch" / "lib"
    libraries = sorted({path.resolve() for path in folder.glob("*.so*") if path.exists()})
    libraries = [path for path in libraries if path.name != _STUB]
    if not libraries:
        sys.exit(f"{folder} has no libraries: install PyTorch there first")
    needs = {path: _needed(path) for path in libraries}
    present = {path.name for path in folder.iterdir() if path.resolve().name != _STUB}
    missing = {name for names in needs.values() for name in names if _is_missing(name, present)}
    if not missing:
        return
    has = set[str]()
    wants = set[str]()
    for path in libraries:
        has.update(_symbols(path, "--defined-only"))
        if not needs[path].isdisjoint(missing):
            wants.update(name for name in _symbols(path, "--undefined-only") if _is_cuda(name))
    defined = {name.partition("@")[0] for name in has}
    versions = {
        name: version
        for name, _, version in (symbol.partition("@") for symbol in sorted(wants))
        if name not in defined
    }
    _compile(folder / _STUB, versions)
    for name in missing:
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(_STUB)


def _needed(library: Path) -> set[str]:
    """Returns the names of the libraries that the loader loads with one."""
    out = _told("readelf", "--wide", "--dynamic", str(library))
    lines = [line for line in out.splitlines() if "(NEEDED)" in line]
    return {line.rpartition("[")[2].rstrip("]") for line in lines}


def _is_missing(name: str, present: set[str]) -> bool:
    """Whether neither PyTorch nor the system has a library."""
    if name in present:
        return False
    if name.startswith(("libcu", "libnv", "libnccl")):
        return True
    found = _told("cc", f"-print-file-name={name}").strip()
    return found == name and not any(
        (Path(folder) / name).exists() for folder in ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
    )


def _symbols(library: Path, which: str) -> list[str]:
    """Returns the names of a library's symbols; a weak one may stay undefined."""
    out = _told("nm", "--dynamic", which, str(library))
    fields = [line.split() for line in out.splitlines()]
    return [each[-1] for each in fields if len(each) > 1 and each[-2] not in ("w", "v")]


def _is_cuda(symbol: str) -> bool:
    """Whether an undefined symbol can be one of CUDA."""
    version = symbol.rpartition("@")[2] if "@" in symbol else ""
    return not version.startswith(_OF_SYSTEM) and not symbol.startswith(_ELSEWHERE)


def _compile(library: Path, versions: dict[str, str]) -> None:
    """Compiles a library in which each name is a function, with the version that is asked for."""
    lines = [
        f'const char *{name}(void) {{ return "no device"; }}'
        if name.endswith(("ErrorString", "ErrorName"))
        else f"long {name}(void) {{ return {_NO_DEVICE}; }}"
        for name in versions
    ]
    nodes: dict[str, list[str]] = {}
    for name, version in versions.items():
        if version:
            nodes.setdefault(version.lstrip("@"), []).append(name)
    script = [
        f"{version} {{ global: {'; '.join(names)}; }};" for version, names in sorted(nodes.items())
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stub.c"
        source.write_text("\n".join(lines) + "\n")
        listed = Path(folder) / "versions"
        listed.write_text("\n".join(script) + "\n")
        made = library.with_suffix(".new")
        options = ["-shared", "-fPIC", "-O1", "-w", "-fno-builtin", f"-Wl,-soname,{_STUB}"]
        if script:
            options.append(f"-Wl,--version-script={listed}")
        subprocess.run(["cc", *options, "-o", str(made), str(source)], check=True)
        made.replace(library)


def _told(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/without_cuda.py SITE-PACKAGES")
    main(Path(sys.argv[1]))
