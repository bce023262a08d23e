//! Tables as CSV (RFC 4180), for spreadsheets and data frames: a line for each row, with names first.

use serde_json::Value;

/// A table.
pub struct Csv {
    columns: Vec<String>,
    text: String,
}

impl Csv {
    /// Begins a table with the names of its columns.
    pub fn new(columns: Vec<String>) -> Csv {
        let mut csv = Csv { columns: Vec::new(), text: String::new() };
        csv.line(columns.iter().cloned());
        csv.columns = columns;
        csv
    }

    /// Adds a row: the values of these columns, where the object has them.
    pub fn row(&mut self, object: &Value) {
        let cells: Vec<String> = self.columns.iter().map(|name| cell(&object[name])).collect();
        self.line(cells.into_iter());
    }

    /// Returns the text.
    pub fn text(self) -> String {
        self.text
    }

    fn line(&mut self, cells: impl Iterator<Item = String>) {
        let cells: Vec<String> = cells.map(|cell| quoted(&cell)).collect();
        self.text.push_str(&cells.join(","));
        self.text.push_str("\r\n");
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // Tags have no blanks.
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\r', '\n']) || cell.trim() != cell {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let mut csv = Csv::new(["a", "b,c", "d", "e"].map(str::to_owned).to_vec());
        csv.row(&json!({ "a": 1, "b,c": "x\"y", "d": ["p", "q"], "f": 7 }));
        csv.row(&json!({ "a": null, "b,c": " z\n", "d": 0.5, "e": false }));
        let lines = "a,\"b,c\",d,e\r\n1,\"x\"\"y\",p q,\r\n,\" z\n\",0.5,false\r\n";
        assert_eq!(csv.text(), lines);
    }
}
