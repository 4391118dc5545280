//! Documents as CSV: a header, and a line for each row (RFC 4180). A value that is missing is empty.

use std::borrow::Cow;

use csv::{ReaderBuilder, Terminator, WriterBuilder};
use kollect_model::{batch::InventoryId, row::Row, schema::columns::Column};

use super::{
    read::{ReadRow, Unreadable},
    values::{ATTRIBUTES, IDENTITY, Value, identity, visit_attributes},
};

pub(super) fn encode(inventory: &InventoryId, rows: &[&Row], columns: &[Column]) -> Vec<u8> {
    let mut writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(Vec::new());
    let names = columns.iter().map(|column| &*column.name);
    let header: Vec<&str> = IDENTITY.into_iter().chain(names).chain([ATTRIBUTES]).collect();
    writer.write_record(&header).expect("memory takes everything");
    for row in rows {
        let mut values: Vec<Cow<'_, str>> = vec![Cow::Borrowed(""); columns.len()];
        let visited = visit_attributes(row, columns, |number, value| {
            values[number] = match value {
                Value::Null => "".into(),
                Value::Text(text) => text,
                Value::Int(number) => number.to_string().into(),
                Value::Number(number) => number.to_string().into(),
                Value::Bool(value) => value.to_string().into(),
                Value::Timestamp(micros) => time(micros).into(),
            };
        });
        visited.expect("attributes are a JSON map");
        let identity = identity(inventory, row);
        let cells = identity.iter().chain(&values).map(|value| value.as_bytes());
        let cells = cells.chain([row.attributes.get().as_bytes()]);
        writer.write_record(cells).expect("every line has as many values as the header");
    }
    writer.into_inner().expect("memory takes everything")
}

fn time(micros: i64) -> String {
    jiff::Timestamp::from_microsecond(micros).map(|time| time.to_string()).unwrap_or_default()
}

/// The rows of a document.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<ReadRow>, Unreadable> {
    let mut reader = ReaderBuilder::new().from_reader(bytes);
    let header = reader.headers().map_err(|_| Unreadable("it is not CSV"))?.clone();
    let position = |name: &str| {
        header.iter().position(|column| column == name).ok_or(Unreadable("it lacks columns of Kollect"))
    };
    let columns = ReadRow::COLUMNS.map(position);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|_| Unreadable("it is not CSV"))?;
        let mut values = Vec::with_capacity(columns.len());
        for column in columns {
            values.push(record.get(column?).unwrap_or_default());
        }
        rows.push(ReadRow::of(&values)?);
    }
    Ok(rows)
}
