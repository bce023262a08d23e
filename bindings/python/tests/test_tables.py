"""Tables, sparse matrices and Arrow's arrays: their arrays are arrays of the state."""

import copy
import datetime
import decimal
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from test_types import plain_only

import outlive

ROWS = 3


@pytest.fixture(autouse=True)
def without_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing may be pickled or unpickled")

    for name in ("dumps", "loads", "dump", "load"):
        monkeypatch.setattr(pickle, name, refuse)


def column_types() -> dict[str, Any]:
    days = pd.to_datetime(["2020-01-01", None, "2020-01-03"])
    return {
        "floats": np.arange(3.0),
        "ints": np.array([1, 2, 3], np.int8),
        "texts": ["x", None, "y"],
        "texts of Python": pd.array(["a", None, "c"], dtype=pd.StringDtype("python")),
        "texts of Arrow": pd.array(["a", None, "c"], dtype="string[pyarrow]"),
        "categories": pd.Categorical(["u", "v", "u"], ordered=True),
        "categories of numbers": pd.Categorical([3, None, 1]),
        "days": days,
        "moments": pd.Series(days).dt.as_unit("ns"),
        "moments in a zone": days.tz_localize("Europe/Berlin"),
        "durations": pd.to_timedelta([1, 2, None]),
        "periods": pd.period_range("2020", "2022", freq="Y"),
        "intervals": pd.interval_range(0, 3, closed="left"),
        "Int64": pd.array([1, None, 3], dtype="Int64"),
        "Float32": pd.array([1.5, None, 2], dtype="Float32"),
        "boolean": pd.array([True, None, False], dtype="boolean"),
        "ints of Arrow": pd.array([1, 2, None], dtype="int64[pyarrow]"),
        "lists of Arrow": pd.array([[1], None, []], dtype=pd.ArrowDtype(pa.list_(pa.int8()))),
        "sparse": pd.arrays.SparseArray([0, 0, 1]),
        "sparse floats": pd.arrays.SparseArray([1.5, np.nan, np.nan], kind="block"),
        "objects": pd.Series([decimal.Decimal(1), 1, "a"], dtype=object),
        "texts as objects": pd.Series(["a", "b", None], dtype=object),
    }


def table() -> pd.DataFrame:
    made = pd.DataFrame(column_types())
    made.attrs = {"unit": "m", "shape": (1, 2)}
    return made


def multi() -> pd.DataFrame:
    index = pd.MultiIndex.from_product([[1, 2], ["a", "b"]], names=["x", None])
    return pd.DataFrame(np.arange(8.0).reshape(4, 2), index=index, columns=index[:2])


class Survey(pd.DataFrame):
    """A table as geopandas and others make them, with attributes of its own."""

    _metadata: ClassVar = ["station", "weights"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.station, self.weights = "none", None

    @property
    def _constructor(self) -> Any:
        return Survey

    @property
    def _constructor_sliced(self) -> Any:
        return Measures


class Measures(pd.Series):
    _metadata: ClassVar = ["_name", "unit"]

    @property
    def _constructor(self) -> Any:
        return Measures


def survey() -> Survey:
    made = Survey({"a": np.arange(3.0), "b": ["x", None, "y"]}, index=[5, 6, 7])
    made.station, made.weights = "north", np.ones(4)
    made.attrs = {"unit": "m"}
    return made


def measures() -> Measures:
    made = Measures([1.5, 2.5], name="m", index=["a", "b"])
    made.unit = "km"
    return made


PANDAS: dict[str, Callable[[], Any]] = {
    "table of a subclass": survey,
    "series of a subclass": measures,
    "table": table,
    "one block": lambda: pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=list("xyz")),
    "labels twice": lambda: pd.DataFrame([[1, 2]], columns=["q", "q"]),
    "labels of other types": lambda: pd.DataFrame([[1, "z"]], columns=[1, ("a", 2)]),
    "empty table": pd.DataFrame,
    "rows only": lambda: pd.DataFrame(index=["a", "b"]),
    "index of levels": multi,
    "no labels twice": lambda: pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False),
    "series": lambda: pd.Series(
        [1, 2, 3], index=pd.date_range("2020", periods=3, tz="UTC"), name=("a", 1)
    ),
    "series of texts": lambda: pd.Series(["a", None], name="n"),
    "index of a range": lambda: pd.RangeIndex(3, 9, 2, name="r"),
    "index of days": lambda: pd.date_range("2020", periods=3, freq="D", tz="UTC"),
    "index of business days": lambda: pd.bdate_range("2020", periods=9, freq="2B"),
    "index of periods": lambda: pd.period_range("2020", "2022", freq="Y"),
    "index of intervals": lambda: pd.interval_range(0, 3),
    "index of categories": lambda: pd.CategoricalIndex(["a", "b"], name="c"),
    "index of durations": lambda: pd.timedelta_range(0, periods=3),
    "index of objects": lambda: pd.Index(["a", 1]),
    "index of texts": lambda: pd.Index(["a", "b"]),
    "timestamp": lambda: pd.Timestamp("2020-10-25 00:30:00.123456789", tz="UTC").tz_convert(
        "Europe/Berlin"
    ),
    "timestamp without a zone": lambda: pd.Timestamp("2020-01-01").as_unit("s"),
    "duration": lambda: pd.Timedelta(5),
    "period": lambda: pd.Period("2020-01", freq="M"),
    "interval": lambda: pd.Interval(pd.Timestamp("2020"), pd.Timestamp("2021"), "both"),
    "missing": lambda: [pd.NA, pd.NaT],
}


def arrow_arrays() -> dict[str, Any]:
    moment = datetime.datetime(2020, 1, 1, 2, 3)
    words = pa.array(["x", "yy", None, "", "zzz"])
    sparse = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    )
    return {
        "ints": pa.array([1, 2, None, 4]),
        "floats": pa.array([1.5, None]),
        "halves": pa.array([np.float16(1.5)]),
        "bools": pa.array([True, None, False] * 7),
        "bools without gaps": pa.array([True, False] * 9),
        "nulls": pa.nulls(4),
        "texts": words,
        "large texts": words.cast(pa.large_string()),
        "bytes": pa.array([b"a", None, b"bcd"]),
        "bytes of one size": pa.array([b"abc", b"def", None], pa.binary(3)),
        "lists": pa.array([[1], [], None, [2, 3]]),
        "large lists": pa.array([[1], [], None, [2, 3]], pa.large_list(pa.int8())),
        "lists of one size": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
        "lists of lists": pa.array([[["a"], []], None, [["b", None]]]),
        "maps": pa.array([[("a", 1)], [], None, [("b", 2)]], pa.map_(pa.string(), pa.int64())),
        "dictionary": pa.array(["a", "b", "a", None]).dictionary_encode(),
        "structs": pa.array([{"q": 1, "r": "x"}, None, {"q": 2, "r": None}]),
        "structs of dictionaries": pa.array(
            [{"d": "a"}, {"d": "b"}], pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))])
        ),
        "decimals": pa.array([decimal.Decimal("1.23"), None]),
        "moments": pa.array([moment, None]),
        "moments in a zone": pa.array([moment], pa.timestamp("us", "Europe/Berlin")),
        "dates": pa.array([moment.date(), None]),
        "times": pa.array([moment.time()]),
        "durations": pa.array([datetime.timedelta(1), None]),
        "spans": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        "views": pa.array(["x", "a text longer than twelve"], pa.string_view()),
        "lists as views": pa.array([[1], [2, 3]], pa.list_view(pa.int64())),
        "union": sparse,
        "runs": pa.RunEndEncodedArray.from_arrays([2, 5], ["a", "b"]),
    }


def arrow_table() -> Any:
    made = pa.table({"a": [1, 2, None], "s": ["x", "yy", None]}, metadata={"k": "v"})
    return pa.concat_tables([made] * 3).slice(2, 5)


ARROW: dict[str, Callable[[], Any]] = {
    "table": arrow_table,
    "table without rows": lambda: arrow_table().slice(0, 0),
    "columns twice": lambda: pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]),
    "batch": lambda: pa.record_batch([pa.array([1, None])], names=["x"]),
    "chunks": lambda: arrow_table().column(0),
    "no chunks": lambda: pa.chunked_array([], pa.int8()),
    "schema": lambda: arrow_table().schema,
    "type": lambda: pa.list_(pa.int8()),
    "field": lambda: pa.field("x", pa.int8(), nullable=False, metadata={"k": "v"}),
}


def sparse(name: str) -> Any:
    kind, _, what = name.partition("_")
    if what == "array":
        return scipy.sparse.random_array((40, 50), density=0.1, format=kind, rng=1)
    return scipy.sparse.random(40, 50, 0.1, format=kind, rng=1)


SPARSE = [
    f"{kind}_{what}"
    for kind in ("csr", "csc", "bsr", "coo", "dia", "lil", "dok")
    for what in ("matrix", "array")
]


def assert_equal(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, pd.DataFrame):
        pd.testing.assert_frame_equal(got, want, check_exact=True, check_freq=True)
        assert got.flags == want.flags
        assert got.attrs == want.attrs
        for label in want.columns[: 0 if want.columns.has_duplicates else None]:
            assert type(got[label].array) is type(want[label].array)
        if isinstance(want, Survey):
            assert got.station == want.station
            assert (got.weights == want.weights).all()
    elif isinstance(want, pd.Series):
        pd.testing.assert_series_equal(got, want, check_exact=True, check_freq=True)
        assert getattr(got, "unit", None) == getattr(want, "unit", None)
    elif isinstance(want, pd.Index):
        pd.testing.assert_index_equal(got, want, exact=True)
        assert getattr(got, "freq", None) == getattr(want, "freq", None)
    elif scipy.sparse.issparse(want):
        assert (got.dtype, got.shape, got.nnz) == (want.dtype, want.shape, want.nnz)
        assert (got.toarray() == want.toarray()).all()
    elif isinstance(want, list):
        assert all(a is b for a, b in zip(got, want, strict=True))
    elif hasattr(want, "equals"):
        assert got.equals(want)
        if hasattr(want, "validate"):
            got.validate(full=True)
        if isinstance(want, pa.Table | pa.RecordBatch | pa.Schema):
            got_schema = got if isinstance(got, pa.Schema) else got.schema
            want_schema = want if isinstance(want, pa.Schema) else want.schema
            assert got_schema.equals(want_schema, check_metadata=True)
    else:
        assert got == want


def check(job: outlive.Job, value: Any) -> None:
    state = {"v": value, "in": (value,), "n": 1}
    job.save(state, wait=True)
    assert_equal(job.restore()["v"], value)
    assert_equal(job.restore()["in"][0], value)
    for other in (None, copy.copy(value)) if type(value) is not list else (value,):
        into: dict[str, Any] = {"v": other, "in": (other,), "n": 0}
        assert job.restore(into=into)
        assert_equal(into["v"], value)
        assert_equal(into["in"][0], value)
    plain_only(job.restore(as_plain=True))
    job.save(value, wait=True)
    assert_equal(job.restore(), value)


@pytest.mark.parametrize("name", PANDAS)
def test_pandas(job: outlive.Job, name: str) -> None:
    check(job, PANDAS[name]())


@pytest.mark.parametrize("name", column_types())
def test_extension_arrays(job: outlive.Job, name: str) -> None:
    series = pd.Series(column_types()[name])
    job.save({"a": series.array, "s": series}, wait=True)
    there = job.restore()
    assert type(there["a"]) is type(series.array)
    assert there["a"].dtype == series.array.dtype
    if series.dtype != object:
        pd.testing.assert_extension_array_equal(there["a"], series.array)
    pd.testing.assert_series_equal(there["s"], series)
    # It can be changed, and is no view of memory that the program has.
    if not isinstance(series.array, pd.arrays.SparseArray):
        there["s"].iloc[0] = there["s"].iloc[1]
    pd.testing.assert_series_equal(job.restore()["s"], series)


@pytest.mark.parametrize("name", arrow_arrays())
def test_arrow_arrays(job: outlive.Job, name: str) -> None:
    whole = arrow_arrays()[name]
    pieces = [whole, whole.slice(1), whole.slice(0, 0), whole.slice(1, max(1, len(whole) - 2))]
    for array in pieces:
        check(job, array)
        job.save({"a": array}, wait=True)
        values = job.restore(as_plain=True)["a"]
        values = values.tolist() if isinstance(values, np.ndarray) else values
        if name in ("ints", "texts", "large texts", "bools", "bytes", "dictionary", "structs"):
            assert values == array.to_pylist()


@pytest.mark.parametrize("name", ARROW)
def test_arrow_tables(job: outlive.Job, name: str) -> None:
    check(job, ARROW[name]())


@pytest.mark.parametrize("name", arrow_arrays())
def test_arrow_scalars(job: outlive.Job, name: str) -> None:
    array = arrow_arrays()[name]
    state = {"v": [array[at] for at in range(len(array))], "n": 1}
    job.save(state, wait=True)
    into: dict[str, Any] = {"v": [None] * len(array), "n": 0}
    assert job.restore(into=into)
    for there in (job.restore(), into):
        for got, want in zip(there["v"], state["v"], strict=True):
            assert type(got) is type(want)
            assert got.type == want.type
            assert got.equals(want)
    plain_only(job.restore(as_plain=True))
    if name in ("ints", "texts", "bools", "bytes", "structs"):
        assert job.restore(as_plain=True)["v"] == array.to_pylist()


def test_a_subclass_of_a_table_that_the_program_holds_is_filled(job: outlive.Job) -> None:
    job.save({"t": survey(), "s": measures()}, wait=True)
    held, row = Survey({"other": [1]}), Measures([0.0])
    row.unit = "m"
    into = {"t": held, "s": row}
    assert job.restore(into=into)
    assert into["t"] is held
    assert_equal(held, survey())
    assert_equal(row, measures())
    assert type(held["a"]) is Measures
    assert type(held[held["a"] > 0]) is Survey
    # A plain table gives way to one of the class.
    plain: dict[str, Any] = {"t": pd.DataFrame({"a": [1]}), "s": None}
    assert job.restore(into=plain)
    assert_equal(plain["t"], survey())


@pytest.mark.parametrize("name", SPARSE)
def test_sparse(job: outlive.Job, name: str) -> None:
    value = sparse(name)
    job.save({"v": value}, wait=True)
    assert_equal(job.restore()["v"], value)
    held = type(value)((3, 3))
    into = {"v": held, "w": None}
    job.save({"v": value, "w": value}, wait=True)
    assert job.restore(into=into)
    assert_equal(into["v"], value)
    assert_equal(into["w"], value)
    assert into["v"] is held
    plain_only(job.restore(as_plain=True))


def test_one_dimension_and_other_dtypes(job: outlive.Job) -> None:
    for value in (
        scipy.sparse.coo_array([0, 1, 0, 2]),
        scipy.sparse.csr_array([0, 1j, 0, 2]),
        scipy.sparse.csr_array(np.eye(3, dtype=bool)),
        scipy.sparse.coo_array(np.zeros((2, 3, 4))),
    ):
        job.save({"v": value}, wait=True)
        assert_equal(job.restore()["v"], value)


def test_arrays_of_a_sparse_matrix_are_filled(job: outlive.Job) -> None:
    value = sparse("csr_array")
    job.save({"v": value}, wait=True)
    held = value.copy()
    held.data[:] = 0
    data, indices = held.data, held.indices
    assert job.restore(into={"v": held})
    assert np.shares_memory(held.data, data)
    assert np.shares_memory(held.indices, indices)
    assert (data == value.data).all()


def test_a_table_that_the_program_holds_is_filled(job: outlive.Job) -> None:
    want = table()
    job.save({"t": want, "s": want["floats"]}, wait=True)
    for held in (table(), table().head(1), pd.DataFrame({"other": [1]}), pd.DataFrame()):
        series = pd.Series([5.0], name="x")
        view = held[held.columns[:1]]
        before = view.copy()
        into = {"t": held, "s": series}
        assert job.restore(into=into)
        assert into["t"] is held
        assert into["s"] is series
        assert_equal(held, want)
        assert_equal(series, want["floats"])
        # Tables that shared memory with it stay.
        pd.testing.assert_frame_equal(view, before)


def test_only_columns_that_changed_are_written(job: outlive.Job) -> None:
    size = 200_000
    frame = pd.DataFrame({f"c{at}": np.random.default_rng(at).random(size) for at in range(5)})
    frame["text"] = pd.Series([f"text {at}" for at in range(size)], dtype="string[pyarrow]")
    frame["category"] = pd.Categorical(np.arange(size) % 7)
    job.save({"t": frame}, wait=True)
    save = job.save({"t": frame}, force=True)
    save.wait()
    assert save.changed_bytes == 0
    frame.loc[5, "c1"] = 0.5
    save = job.save({"t": frame}, force=True)
    save.wait()
    assert 0 < (save.changed_bytes or 0) <= 16_384
    # The same data in another table is stored once.
    save = job.save({"t": frame, "u": frame.copy()}, force=True)
    save.wait()
    assert (save.new_bytes or 0) < 100_000
    assert job.restore(only="t/data/c1", as_plain=True)["t"]["data"]["c1"][5] == 0.5
    # Of a slice only its rows.
    arrow = pa.table({"a": np.arange(1_000_000)}).slice(10, 100)
    job.save({"a": arrow}, wait=True)
    assert job.epochs()[-1].state_bytes < 10_000


def test_plain_forms(job: outlive.Job) -> None:
    frame = pd.DataFrame({"a": [1.5, 2.5], "b": ["x", None]}, index=pd.Index([7, 8], name="i"))
    job.save({"f": frame, "t": arrow_table(), "m": sparse("csr_array")}, wait=True)
    plain = job.restore(as_plain=True)
    assert plain["f"]["columns"] == ["a", "b"]
    assert plain["f"]["index"].tolist() == [7, 8]
    assert plain["f"]["data"]["a"].tolist() == [1.5, 2.5]
    assert plain["f"]["data"]["b"] == ["x", None]
    assert plain["t"] == {"a": [None, 1, 2, None, 1], "s": [None, "x", "yy", None, "x"]}
    assert plain["m"]["data"].shape == (200,)


def test_a_program_without_the_packages(job: outlive.Job, folder: Path) -> None:
    job.save({"t": table(), "a": arrow_table(), "m": sparse("csr_array"), "n": 1}, wait=True)
    job.close()
    program = f"""
import sys
for name in ("pandas", "pyarrow", "scipy"):
    sys.modules[name] = None
import outlive
job = outlive.open({str(folder)!r}).job("job")
try:
    job.restore()
except outlive.InvalidError as error:
    print(error)
try:
    job.restore(into={{"t": None, "a": None, "m": None, "n": 0}})
except outlive.InvalidError as error:
    print(error)
plain = job.restore(as_plain=True)
print(plain["a"]["s"], plain["t"]["data"]["floats"].tolist(), plain["n"])
assert not any(map(sys.modules.get, ("pandas", "pyarrow", "scipy")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert "needs the package" in first
    assert "`job.restore(as_plain=True)`" in first
    assert "needs the package" in second
    assert last == "[None, 'x', 'yy', None, 'x'] [0.0, 1.0, 2.0] 1"


def test_plain_states_import_no_package() -> None:
    program = """
import sys, tempfile, numpy as np, outlive
with tempfile.TemporaryDirectory() as folder:
    job = outlive.open(folder + "/pool").job("a")
    job.save({"a": np.ones(3), "s": {1}, "d": {1.5: np.ones(2)}}, wait=True)
    job.restore()
    job.close()
packages = ("attr", "attrs", "jax", "pandas", "pyarrow", "scipy", "torch")
print([name for name in packages if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("entry", ["indices", "indptr"])
def test_indices_that_lead_beyond_the_arrays(job: outlive.Job, entry: str) -> None:
    value = sparse("csr_array")
    setattr(value, entry, getattr(value, entry) + 1000)
    job.save({"v": value}, wait=True)
    with pytest.raises(outlive.InvalidError, match="cannot be made again: ValueError"):
        job.restore()


def test_offsets_that_lead_beyond_the_buffers(job: outlive.Job) -> None:
    offsets = pa.py_buffer(np.array([0, 5, 500_000_000], np.int32))
    value = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"abcde")])
    from outlive._kinds import _arrow

    tree = _arrow._lower_array(value) | {"length": 2, "offsets": np.frombuffer(offsets, np.int32)}
    with pytest.raises(pa.ArrowInvalid):
        _arrow._make_array(pa.string(), tree)
