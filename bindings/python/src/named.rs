//! Reports of the engine as dictionaries, which are keyword arguments of Python's dataclasses.

/// Makes a dictionary. A report's field is listed here once, and once in the dataclass.
///
/// `name: value` is an entry; `..report { name, other }` takes fields of a report under their own
/// names. It works in functions that return a `PyResult`.
macro_rules! named {
    ($py:expr; $(..$report:ident { $($field:ident),* $(,)? },)* $($name:ident: $value:expr),* $(,)?) => {{
        let named = pyo3::types::PyDict::new($py);
        $($(named.set_item(stringify!($field), &$report.$field)?;)*)*
        $(named.set_item(stringify!($name), $value)?;)*
        named
    }};
}

pub(crate) use named;
