//! What Python gets of the engine's reports: dictionaries, as arguments by name for its dataclasses.

/// Makes a dictionary. A report's field is listed here once, and once in the dataclass.
///
/// `name: value` is an entry; `..report { name, other }` takes fields of a report under their own names.
/// It is for functions that give a `PyResult`.
macro_rules! named {
    ($py:expr; $(..$report:ident { $($field:ident),* $(,)? },)* $($name:ident: $value:expr),* $(,)?) => {{
        let named = pyo3::types::PyDict::new($py);
        $($(named.set_item(stringify!($field), &$report.$field)?;)*)*
        $(named.set_item(stringify!($name), $value)?;)*
        named
    }};
}

pub(crate) use named;
