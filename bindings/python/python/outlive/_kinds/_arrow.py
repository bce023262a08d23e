"""Tables and arrays of Arrow: their buffers are arrays of the state.

An array becomes its validity bitmap, its buffers and its children, without what lies outside of a
slice. The types are the bytes of a schema, as Arrow writes it in its streams.
"""

import importlib
from typing import Any

import numpy as np

from outlive._kinds._base import Detail, Finder, Kind

pa: Any = importlib.import_module("pyarrow")


def _schema_of(of: Any) -> bytes:
    return bytes(pa.schema([("", of)]).serialize())


def _type_of(schema: bytes) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(schema)).field(0).type


# --- One array ------------------------------------------------------------------------------------


def _bits(buffer: Any, offset: int, length: int) -> Any:
    """Returns the bits of an array, from the first of a byte on."""
    octets = np.frombuffer(buffer, np.uint8)
    if offset % 8 == 0:
        return octets[offset // 8 : (offset + length + 7) // 8]
    bits = np.unpackbits(octets, count=offset + length, bitorder="little")
    return np.packbits(bits[offset:], bitorder="little")


def _valid(array: Any) -> Any:
    """Returns the validity bitmap; None if all entries are there."""
    if array.null_count == 0:
        return None
    return _bits(array.buffers()[0], array.offset, len(array))


def _offsets(array: Any, dtype: Any) -> tuple[Any, int, int]:
    """Returns offsets from 0 on, and the first and last of those in the buffer."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(1, dtype), 0, 0
    first = array.offset
    offsets = np.frombuffer(buffer, dtype)[first : first + len(array) + 1]
    begin, end = int(offsets[0]), int(offsets[-1])
    return offsets if begin == 0 else offsets - dtype(begin), begin, end


def _lower_array(array: Any) -> dict[str, Any]:
    of = array.type
    types = pa.types
    if isinstance(of, pa.BaseExtensionType):
        return {"form": "extension", "storage": _lower_array(array.storage)}
    if types.is_null(of):
        return {"form": "null", "length": len(array)}
    if types.is_dictionary(of):
        return {
            "form": "dictionary",
            "indices": _lower_array(array.indices),
            "dictionary": _lower_array(array.dictionary),
        }
    if _needs_stream(of):
        return {"form": "stream", "stream": _stream_of(array)}
    tree = {"form": _form(of), "length": len(array), "valid": _valid(array)}
    if types.is_struct(of):
        names = [of.field(at).name for at in range(of.num_fields)]
        fields = [_lower_array(array.field(at)) for at in range(of.num_fields)]
        tree["children"] = _by_name(names, fields)
    elif types.is_fixed_size_list(of):
        first, size = array.offset, of.list_size
        tree["children"] = [_lower_array(array.values.slice(first * size, len(array) * size))]
    elif types.is_boolean(of):
        tree["values"] = _bits(array.buffers()[1], array.offset, len(array))
    elif (dtype := _offset_dtype(of)) is not None:
        tree["offsets"], begin, end = _offsets(array, dtype)
        if of.num_fields:
            tree["children"] = [_lower_array(array.values.slice(begin, end - begin))]
        else:
            octets = array.buffers()[2]
            tree["values"] = np.frombuffer(octets or b"", np.uint8)[begin:end]
    else:
        tree["values"] = _fixed_width(array, of)
    return tree


def _form(of: Any) -> str:
    """Returns the form of an array's buffers, for programs without Arrow."""
    types = pa.types
    if types.is_struct(of):
        return "struct"
    if types.is_boolean(of):
        return "bits"
    if of.num_fields:
        return "list"
    if types.is_string(of) or types.is_large_string(of):
        return "text"
    return "bytes" if _offset_dtype(of) is not None else "values"


def _offset_dtype(of: Any) -> Any:
    types = pa.types
    if types.is_large_list(of) or types.is_large_string(of) or types.is_large_binary(of):
        return np.int64
    if types.is_list(of) or types.is_map(of) or types.is_string(of) or types.is_binary(of):
        return np.int32
    return None


def _fixed_width(array: Any, of: Any) -> Any:
    size = of.bit_width // 8
    buffer = array.buffers()[1]
    octets = np.frombuffer(buffer or b"", np.uint8)
    octets = octets[array.offset * size : (array.offset + len(array)) * size]
    types = pa.types
    if types.is_integer(of) or types.is_floating(of):
        return octets.view(of.to_pandas_dtype())
    if types.is_timestamp(of) or types.is_duration(of):
        return octets.view(f"{'M8' if types.is_timestamp(of) else 'm8'}[{of.unit}]")
    if types.is_date(of):
        return octets.view("i4" if types.is_date32(of) else "M8[ms]")
    return octets


def _needs_stream(of: Any) -> bool:
    """Whether an array is saved as Arrow's stream, since its buffers have another form."""
    if _offset_dtype(of) is not None or pa.types.is_boolean(of):
        return False
    if pa.types.is_struct(of) or pa.types.is_fixed_size_list(of):
        return False
    try:
        return bool(of.bit_width % 8)
    except ValueError:
        return True  # unions, views, runs


def _stream_of(array: Any) -> Any:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=[""])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _make_array(of: Any, tree: Any) -> Any:
    types = pa.types
    form = tree["form"]
    if form == "extension":
        return pa.ExtensionArray.from_storage(of, _make_array(of.storage_type, tree["storage"]))
    if form == "dictionary":
        indices = _make_array(of.index_type, tree["indices"])
        values = _make_array(of.value_type, tree["dictionary"])
        return pa.DictionaryArray.from_arrays(indices, values, ordered=of.ordered)
    if form == "stream":
        with pa.ipc.open_stream(pa.py_buffer(tree["stream"])) as reader:
            return reader.read_all().column(0).combine_chunks()
    if types.is_null(of):
        return pa.nulls(tree["length"])
    buffers = [None if tree["valid"] is None else pa.py_buffer(tree["valid"])]
    buffers += [pa.py_buffer(tree[name]) for name in ("offsets", "values") if name in tree]
    children = None
    if "children" in tree:
        fields = [of.field(at).type for at in range(of.num_fields)]
        inner = tree["children"]
        inner = inner.values() if isinstance(inner, dict) else inner
        children = [_make_array(one, two) for one, two in zip(fields, inner, strict=True)]
    made = pa.Array.from_buffers(of, tree["length"], buffers, children=children)
    # Offsets from a store must never lead beyond the buffers.
    made.validate(full=True)
    return made


# --- The kinds ------------------------------------------------------------------------------------


def _array(detail: Detail, tree: Any, find: Finder) -> Any:
    return _make_array(_type_of(tree["type"]), tree["array"])


def _lower_chunked(value: Any) -> tuple[Detail, Any]:
    return None, {"type": _schema_of(value.type), "chunks": list(map(_lower_array, value.chunks))}


def _chunked(detail: Detail, tree: Any, find: Finder) -> Any:
    of = _type_of(tree["type"])
    return pa.chunked_array([_make_array(of, chunk) for chunk in tree["chunks"]], of)


def _by_name(names: list[str], columns: list[Any]) -> Any:
    """Returns columns by their names, if these differ."""
    return dict(zip(names, columns, strict=True)) if len(set(names)) == len(names) else columns


def _columns(tree: Any) -> tuple[Any, list[Any]]:
    schema, columns = pa.ipc.read_schema(pa.py_buffer(tree["schema"])), tree["columns"]
    columns = list(columns.values() if isinstance(columns, dict) else columns)
    if len(columns) != len(schema):
        raise ValueError(f"{len(schema)} columns are in the schema, and {len(columns)} are there")
    return schema, columns


def _lower_table(value: Any) -> tuple[Detail, Any]:
    columns = [list(map(_lower_array, column.chunks)) for column in value.columns]
    schema = value.schema
    tree = {"schema": bytes(schema.serialize()), "columns": _by_name(schema.names, columns)}
    return value.num_rows, tree


def _table(rows: Detail, tree: Any, find: Finder) -> Any:
    schema, columns = _columns(tree)
    arrays = [
        pa.chunked_array([_make_array(field.type, chunk) for chunk in column], field.type)
        for field, column in zip(schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _lower_batch(value: Any) -> tuple[Detail, Any]:
    schema = value.schema
    columns = _by_name(schema.names, list(map(_lower_array, value.columns)))
    return value.num_rows, {"schema": bytes(schema.serialize()), "columns": columns}


def _batch(rows: Detail, tree: Any, find: Finder) -> Any:
    schema, columns = _columns(tree)
    arrays = [_make_array(field.type, tree) for field, tree in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


ARRAY = Kind(
    "pyarrow.Array",
    lambda value: (None, {"type": _schema_of(value.type), "array": _lower_array(value)}),
    _array,
)
CHUNKED = Kind("pyarrow.ChunkedArray", _lower_chunked, _chunked)
TABLE = Kind("pyarrow.Table", _lower_table, _table)
BATCH = Kind("pyarrow.RecordBatch", _lower_batch, _batch)
# One entry of an array.
SCALAR = Kind(
    "pyarrow.Scalar",
    lambda value: (
        None,
        {"type": _schema_of(value.type), "array": _lower_array(pa.repeat(value, 1))},
    ),
    lambda detail, tree, find: _array(detail, tree, find)[0],
)
FIELD = Kind(
    "pyarrow.Field",
    lambda value: (None, bytes(pa.schema([value]).serialize())),
    lambda detail, tree, find: pa.ipc.read_schema(pa.py_buffer(tree)).field(0),
)
SCHEMA = Kind(
    "pyarrow.Schema",
    lambda value: (None, bytes(value.serialize())),
    lambda detail, tree, find: pa.ipc.read_schema(pa.py_buffer(tree)),
)
TYPE = Kind(
    "pyarrow.DataType",
    lambda value: (None, _schema_of(value)),
    lambda detail, tree, find: _type_of(tree),
)

BY_NAME = {kind.name: kind for kind in (ARRAY, CHUNKED, TABLE, BATCH, SCALAR, FIELD, SCHEMA, TYPE)}
_CLASSES = (
    (pa.Array, ARRAY),
    (pa.ChunkedArray, CHUNKED),
    (pa.Table, TABLE),
    (pa.RecordBatch, BATCH),
    (pa.Scalar, SCALAR),
    (pa.Field, FIELD),
    (pa.Schema, SCHEMA),
    (pa.DataType, TYPE),
)


def kind_of(cls: type) -> Kind | None:
    """Returns the kind of a class; None if it cannot become a tree."""
    return next((kind for base, kind in _CLASSES if issubclass(cls, base)), None)
