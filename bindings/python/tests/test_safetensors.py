"""Models as safetensors files: `outlive export --format safetensors` and `outlive import`."""

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import outlive


def run(*words: object, code: int = 0) -> str:
    command = ["outlive", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def entries(path: Path) -> dict[str, Any]:
    """Returns the tensors as the package itself decodes the file."""
    return dict(safetensors.deserialize(path.read_bytes()))


def save(folder: Path, state: dict[str, Any]) -> None:
    with outlive.open(folder).job("job") as job:
        job.save(state, force=True, wait=True)


@pytest.fixture
def folder(folder: Path) -> Path:
    """A pool, so that no command fails only because there is none."""
    outlive.open(folder)
    return folder


@pytest.fixture
def state() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    table = rng.standard_normal((300, 200))
    return {
        "model": {
            "layers.0.weight": table.astype(np.float32),
            "fortran": np.asfortranarray(table),
            "bf16": table.astype(ml_dtypes.bfloat16),
            "fp8": table.astype(ml_dtypes.float8_e4m3fn),
            "fp8 too": table[:10].astype(ml_dtypes.float8_e5m2),
            "a/b": np.arange(7, dtype=np.int16),
            "scalar": np.array(5, dtype=np.uint64),
            "empty": np.zeros((0, 3), dtype=np.float16),
            "flags": np.array([True, False]),
            "complex": np.array([1 + 2j], dtype=np.complex64),
        },
        "step": 17,
        "times": np.array(["2020-01-01"], dtype="M8[s]"),
    }


DTYPES = {
    "layers.0.weight": "F32",
    "fortran": "F64",
    "bf16": "BF16",
    "fp8": "F8_E4M3",
    "fp8 too": "F8_E5M2",
    "a/b": "I16",
    "scalar": "U64",
    "empty": "F16",
    "flags": "BOOL",
    "complex": "C64",
}


def test_the_package_reads_what_was_exported(
    folder: Path, tmp_path: Path, state: dict[str, Any]
) -> None:
    save(folder, state)
    file = tmp_path / "out" / "net.safetensors"
    said = run("export", folder, "job", "--format", "safetensors", "--to", file)
    assert "10 tensors" in said
    found = entries(file)
    assert set(found) == {f"model/{name}" for name in DTYPES}
    for name, dtype in DTYPES.items():
        entry, array = found[f"model/{name}"], state["model"][name]
        assert (entry["dtype"], tuple(entry["shape"])) == (dtype, array.shape), name
        assert bytes(entry["data"]) == array.tobytes("C"), name
    with safetensors.safe_open(file, framework="np") as opened:
        assert opened.metadata() == {"format": "np", "outlive": "job@1"}
        assert (opened.get_tensor("model/fortran") == state["model"]["fortran"]).all()
    assert list(file.parent.iterdir()) == [file]


def test_root_and_only_choose(folder: Path, tmp_path: Path, state: dict[str, Any]) -> None:
    save(folder, state)
    file = tmp_path / "net.safetensors"
    words = ["--format", "safetensors", "--to", file]
    told = json.loads(run("--json", "export", folder, "job", *words, "--root", "model"))
    assert set(entries(file)) == set(DTYPES)
    assert told["left_out"] == []
    assert "is there already" in run("export", folder, "job", *words, code=2)
    run("export", folder, "job", *words, "--force", "--only", "model/fp8*")
    assert set(entries(file)) == {"model/fp8", "model/fp8 too"}
    assert "no array" in run("export", folder, "job", *words, "--force", "--only", "step", code=2)
    table = run("export", folder, "job", *words, "--dry-run", "--force")
    assert "BF16" in table
    assert "Nothing was written" in table
    assert set(entries(file)) == {"model/fp8", "model/fp8 too"}
    refused = run("export", folder, "job", "--to", tmp_path / "x", "--root", "model", code=2)
    assert "only with --format safetensors" in refused


def test_shards_have_an_index(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    state = {f"w{n}": rng.standard_normal(20_000).astype(np.float32) for n in range(10)}
    state["long"] = rng.standard_normal(100_000)
    save(folder, state)
    out = tmp_path / "out"
    words = ["--format", "safetensors", "--max-shard-size", "200kB", "--to", out]
    run("export", folder, "job", *words)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 10 * 80_000 + 800_000
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-0000{n}-of-00006.safetensors" for n in range(1, 7)]
    found = {}
    for name in files:
        of_file = safetensors.numpy.load_file(out / name)
        assert of_file.keys() == {key for key, it in index["weight_map"].items() if it == name}
        found.update(of_file)
    assert found.keys() == state.keys()
    assert all((found[name] == state[name]).all() for name in state)
    run("import", out / "model.safetensors.index.json", folder, "again")
    restored = outlive.open(folder).job("again").restore()
    assert all((restored[name] == state[name]).all() for name in state)
    (out / files[2]).rename(out / "elsewhere")
    refused = run("import", out / "model.safetensors.index.json", folder, "again", code=2)
    assert files[2] in refused


def test_what_the_package_wrote_is_restored(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    arrays = {
        "w/x": rng.standard_normal((300, 100)).astype(np.float32),
        "~": np.arange(3),
        "half": rng.standard_normal(50_000).astype(np.float16),
        "none": np.zeros((0, 2)),
        "zeros": np.zeros(200_000),
    }
    file = tmp_path / "net.safetensors"
    safetensors.numpy.save_file(arrays, file, metadata={"format": "np"})
    assert "5 tensors" in run("import", file, folder)
    restored = outlive.open(folder).job("net").restore()
    assert restored.keys() == arrays.keys()
    for name, array in arrays.items():
        assert restored[name].dtype == array.dtype
        assert restored[name].tobytes() == array.tobytes()
    into = {name: np.empty_like(array) for name, array in arrays.items()}
    outlive.open(folder).job("net").restore(into=into)
    assert into["w/x"].tobytes() == arrays["w/x"].tobytes()
    # The same again takes no space, and a change takes its own.
    again = json.loads(run("--json", "import", file, folder))
    assert again["epoch"] == 2
    assert again["new_bytes"] < 20_000
    run("export", folder, "net", "--format", "safetensors", "--to", tmp_path / "b.safetensors")
    back = safetensors.numpy.load_file(tmp_path / "b.safetensors")
    assert back.keys() == arrays.keys()
    assert all(back[name].tobytes() == arrays[name].tobytes() for name in arrays)


def test_small_floats_are_imported(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    arrays = {
        "bf16": ("BF16", rng.standard_normal(100).astype(ml_dtypes.bfloat16)),
        "e4m3": ("F8_E4M3", rng.standard_normal(70_000).astype(ml_dtypes.float8_e4m3fn)),
        "e5m2": ("F8_E5M2", rng.standard_normal(9).astype(ml_dtypes.float8_e5m2)),
        "e8m0": ("F8_E8M0", rng.random(9).astype(ml_dtypes.float8_e8m0fnu)),
    }
    whole = {}
    data = b""
    for name, (dtype, array) in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        whole[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    file = tmp_path / "net.safetensors"
    write(file, whole, data)
    run("import", file, folder)
    restored = outlive.open(folder).job("net").restore()
    for name, (_, array) in arrays.items():
        assert restored[name].dtype == array.dtype
        assert restored[name].tobytes() == array.tobytes()


def write(file: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


HOSTILE: list[tuple[Any, bytes]] = [
    (b"", b""),
    (b"[]", b""),
    (b"{", b""),
    ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),
    ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345"),
    ({"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}, b"1234"),
    ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [2**63, 4]}}, b"1234"),
    ({"x": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}, b"12"),
    ({"x": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, b"123"),
    ({"__metadata__": {"x": {}}}, b""),
    (b'{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' * 2 + b"}", b""),
    (b"{" + b'"a":' * 100_000, b""),
    (b'{"a":' * 100_000, b""),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_files_are_refused(folder: Path, tmp_path: Path, number: int) -> None:
    file = tmp_path / "net.safetensors"
    write(file, *HOSTILE[number])
    outlive.open(folder)
    said = run("import", file, folder, "job", code=2)
    assert "net.safetensors" in said or "F6_E2M3" in said
    assert outlive.open(folder).jobs() == []


def test_a_header_beyond_the_file_is_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    for length in (2**63, 10**9, 100, 1):
        file.write_bytes(struct.pack("<Q", length) + b"{}")
        run("import", file, folder, "job", code=2)
    file.write_bytes(b"123")
    run("import", file, folder, "job", code=2)
    run("import", tmp_path, folder, "job", code=2)
    run("import", tmp_path / "none.safetensors", folder, "job", code=2)


def test_a_model_need_not_fit_into_memory(folder: Path, tmp_path: Path) -> None:
    count = 60_000_000
    array = np.random.default_rng(5).integers(0, 2**32, count, dtype=np.uint32)
    file = tmp_path / "net.safetensors"
    safetensors.numpy.save_file({"x": array}, file)
    out = tmp_path / "out.safetensors"
    for words in (["import", file, folder], ["export", folder, "net", "--format", "safetensors",
                  "--to", out]):  # fmt: skip
        # Pages of the file that are mapped count not: the system may drop them.
        limited = ["prlimit", f"--data={int(array.nbytes * 0.8)}", "outlive", *map(str, words)]
        done = subprocess.run(limited, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words[0], done.stderr)
    assert (safetensors.numpy.load_file(out)["x"] == array).all()
