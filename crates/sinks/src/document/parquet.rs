//! Documents as Parquet: a typed column for each attribute, statistics, and rows that are sorted by namespace and name.

use std::sync::Arc;

use bytes::Bytes;
use kollect_model::{
    batch::InventoryId,
    crd::sinks::Compression as Codec,
    row::Row,
    schema::columns::{Column, ColumnType},
};
use parquet::{
    basic::{Compression, GzipLevel, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel},
    column::writer::ColumnWriter,
    data_type::ByteArray,
    errors::ParquetError,
    file::{
        metadata::{KeyValue, SortingColumn},
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::types::{ColumnPath, Type, TypePtr},
};

use super::{
    encode::DocumentFacts,
    values::{ATTRIBUTES, IDENTITY, Value, identity, visit_attributes},
};

/// Rows of one row group: its columns are collected in memory.
const GROUP_ROWS: usize = 20_000;

/// The column of the time of the export.
const EXPORTED_AT: &str = "exported_at";

/// Numbers of the columns that rows are sorted by: namespace and name.
const SORTED_BY: [i32; 2] = [5, 6];

pub(super) fn encode(
    inventory: &InventoryId,
    rows: &[&Row],
    columns: &[Column],
    codec: Codec,
    facts: &DocumentFacts<'_>,
) -> Result<Vec<u8>, ParquetError> {
    let properties = Arc::new(properties(codec, facts));
    let mut writer = SerializedFileWriter::new(Vec::new(), schema(columns)?, properties)?;
    for rows in rows.chunks(GROUP_ROWS) {
        let mut group = writer.next_row_group()?;
        write_group(&mut group, inventory, rows, columns, facts)?;
        group.close()?;
    }
    writer.into_inner()
}

fn properties(codec: Codec, facts: &DocumentFacts<'_>) -> WriterProperties {
    let compression = match codec {
        Codec::None => Compression::UNCOMPRESSED,
        Codec::Snappy => Compression::SNAPPY,
        Codec::Gzip => Compression::GZIP(GzipLevel::default()),
        Codec::Zstd => Compression::ZSTD(ZstdLevel::default()),
    };
    let sorted =
        SORTED_BY.map(|column_idx| SortingColumn { column_idx, descending: false, nulls_first: false });
    let metadata = facts.metadata().into_iter();
    let metadata =
        metadata.map(|(key, value)| KeyValue { key: format!("kollect.{key}"), value: Some(value) });
    WriterProperties::builder()
        .set_created_by("kollect".into())
        .set_compression(compression)
        .set_sorting_columns(Some(sorted.into()))
        .set_key_value_metadata(Some(metadata.collect()))
        // Every value is another one.
        .set_column_dictionary_enabled(ColumnPath::from("uid"), false)
        .set_column_dictionary_enabled(ColumnPath::from(ATTRIBUTES), false)
        .build()
}

fn schema(columns: &[Column]) -> Result<TypePtr, ParquetError> {
    let field = |name: &str, physical, logical, repetition| {
        let field = Type::primitive_type_builder(name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .build()?;
        Ok::<_, ParquetError>(Arc::new(field))
    };
    let text =
        |name: &str, repetition| field(name, PhysicalType::BYTE_ARRAY, Some(LogicalType::String), repetition);
    let micros = || Some(LogicalType::timestamp(true, TimeUnit::MICROS));
    let mut fields = Vec::with_capacity(IDENTITY.len() + columns.len() + 2);
    for name in IDENTITY {
        // The group of core kinds is null, as in the Go implementation.
        fields.push(text(name, if name == "group" { Repetition::OPTIONAL } else { Repetition::REQUIRED })?);
    }
    fields.push(field(EXPORTED_AT, PhysicalType::INT64, micros(), Repetition::REQUIRED)?);
    fields.push(text(ATTRIBUTES, Repetition::REQUIRED)?);
    for column in columns {
        let (physical, logical) = match column.type_ {
            ColumnType::Text | ColumnType::Quantity | ColumnType::Json => {
                (PhysicalType::BYTE_ARRAY, Some(LogicalType::String))
            }
            ColumnType::Int => (PhysicalType::INT64, None),
            ColumnType::Number | ColumnType::QuantityNumber => (PhysicalType::DOUBLE, None),
            ColumnType::Bool => (PhysicalType::BOOLEAN, None),
            ColumnType::Timestamp => (PhysicalType::INT64, micros()),
        };
        fields.push(field(&column.name, physical, logical, Repetition::OPTIONAL)?);
    }
    Ok(Arc::new(Type::group_type_builder("inventory").with_fields(fields).build()?))
}

/// The values of a column of a row group, and for each row whether it has one.
#[derive(Default)]
struct Collected {
    levels: Vec<i16>,
    /// Texts behind each other, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    integers: Vec<i64>,
    numbers: Vec<f64>,
    flags: Vec<bool>,
}

impl Collected {
    /// Adds the value of the row with this number; rows in between have none.
    fn add(&mut self, row: usize, value: Value<'_>) {
        // A map can have a key twice: the first value counts.
        if self.levels.len() > row {
            return;
        }
        self.levels.resize(row, 0);
        match value {
            Value::Null => return,
            Value::Text(text) => {
                self.text.extend_from_slice(text.as_bytes());
                self.ends.push(self.text.len());
            }
            Value::Int(number) | Value::Timestamp(number) => self.integers.push(number),
            Value::Number(number) => self.numbers.push(number),
            Value::Bool(flag) => self.flags.push(flag),
        }
        self.levels.push(1);
    }

    fn texts(&mut self) -> Vec<ByteArray> {
        let text = Bytes::from(std::mem::take(&mut self.text));
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| ByteArray::from(text.slice(start..*end))).collect()
    }
}

fn write_group(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    inventory: &InventoryId,
    rows: &[&Row],
    columns: &[Column],
    facts: &DocumentFacts<'_>,
) -> Result<(), ParquetError> {
    for (number, name) in IDENTITY.into_iter().enumerate() {
        let mut collected = Collected::default();
        for (index, row) in rows.iter().enumerate() {
            let value = identity(inventory, row)[number].clone();
            let is_null = value.is_empty() && name == "group";
            collected.add(index, if is_null { Value::Null } else { Value::Text(value) });
        }
        write_column(group, collected, rows.len())?;
    }
    let exported_at = vec![facts.exported_at.as_microsecond(); rows.len()];
    write_column(
        group,
        Collected { levels: vec![1; rows.len()], integers: exported_at, ..Collected::default() },
        rows.len(),
    )?;
    let mut attributes = Collected::default();
    let mut values: Vec<Collected> = columns.iter().map(|_| Collected::default()).collect();
    for (index, row) in rows.iter().enumerate() {
        attributes.add(index, Value::Text(row.attributes.get().into()));
        let visited = visit_attributes(row, columns, |number, value| values[number].add(index, value));
        visited.map_err(|error| ParquetError::General(error.to_string()))?;
    }
    write_column(group, attributes, rows.len())?;
    values.into_iter().try_for_each(|collected| write_column(group, collected, rows.len()))
}

fn write_column(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    mut collected: Collected,
    rows: usize,
) -> Result<(), ParquetError> {
    collected.levels.resize(rows, 0);
    let texts = collected.texts();
    let mut column = group.next_column()?.expect("the schema has a column for each call");
    let levels = Some(&*collected.levels);
    match column.untyped() {
        ColumnWriter::ByteArrayColumnWriter(writer) => writer.write_batch(&texts, levels, None)?,
        ColumnWriter::Int64ColumnWriter(writer) => writer.write_batch(&collected.integers, levels, None)?,
        ColumnWriter::DoubleColumnWriter(writer) => writer.write_batch(&collected.numbers, levels, None)?,
        ColumnWriter::BoolColumnWriter(writer) => writer.write_batch(&collected.flags, levels, None)?,
        _ => unreachable!("the schema has no other physical types"),
    };
    column.close()
}
