//! Makes the document of rows. Equal rows and facts give equal bytes.

use bytes::Bytes;
use jiff::Timestamp;
use kollect_model::{
    batch::InventoryId,
    crd::sinks::Compression,
    envelope::{self, DocumentSettings as EnvelopeSettings, Item},
    row::Row,
    schema::columns::Columns,
    sink::{SinkError, SinkReason},
};
use sha2::{Digest as _, Sha256};

use super::{DocumentFormat, DocumentSettings, csv, parquet};
use crate::layout::chunks::gzip;

/// What a document says besides its rows, where its format has room for it.
#[derive(Clone, Debug)]
pub(crate) struct DocumentFacts<'a> {
    pub(crate) exported_at: Timestamp,
    pub(crate) generation: i64,
    pub(crate) revision: u64,
    /// Epoch of the claim.
    pub(crate) epoch: i64,
    pub(crate) coverage: &'a str,
}

impl DocumentFacts<'_> {
    /// By key.
    pub(super) fn metadata(&self) -> [(&'static str, String); 6] {
        [
            ("schemaVersion", envelope::SCHEMA_VERSION.to_owned()),
            ("exportedAt", self.exported_at.to_string()),
            ("generation", self.generation.to_string()),
            ("revision", self.revision.to_string()),
            ("epoch", self.epoch.to_string()),
            ("coverage", self.coverage.to_owned()),
        ]
    }
}

/// A document, and the checksum of its rows.
pub(crate) struct EncodedDocument {
    pub(crate) bytes: Bytes,
    pub(crate) checksum: String,
}

/// The document of these rows, in any order.
pub(crate) fn encode(
    settings: &DocumentSettings,
    inventory: &InventoryId,
    mut rows: Vec<&Row>,
    columns: &Columns,
    facts: &DocumentFacts<'_>,
) -> Result<EncodedDocument, SinkError> {
    let failed = |error| {
        SinkError::because(SinkReason::Refused, format!("make the document of inventory {inventory}"), error)
    };
    let (text, checksum) = match settings.format {
        DocumentFormat::Json => {
            let exported_at = facts.exported_at.to_string();
            let settings = EnvelopeSettings {
                generation: facts.generation,
                cluster: &inventory.cluster,
                exported_at: &exported_at,
                part_bytes: usize::MAX,
            };
            let mut items: Vec<Item> = rows.into_iter().map(Item::of).collect();
            items.sort_unstable_by(|a, b| (&a.document_key, &a.text).cmp(&(&b.document_key, &b.text)));
            let document = envelope::document(&items, None, &settings);
            (document.bytes, document.checksum)
        }
        DocumentFormat::Ndjson => {
            let mut items: Vec<Item> = rows.into_iter().map(Item::of).collect();
            items.sort_unstable_by(|a, b| (&a.document_key, &a.text).cmp(&(&b.document_key, &b.text)));
            let text: String = items.iter().flat_map(|item| [&*item.text, "\n"]).collect();
            let checksum = envelope::hex(&Sha256::digest(&text));
            (text.into_bytes(), checksum)
        }
        DocumentFormat::Csv => {
            sort(&mut rows);
            let text = csv::encode(inventory, &rows, &columns.columns);
            let checksum = envelope::hex(&Sha256::digest(&text));
            (text, checksum)
        }
        DocumentFormat::Parquet => {
            sort(&mut rows);
            let checksum = checksum_of_rows(&rows);
            let bytes = parquet::encode(inventory, &rows, &columns.columns, settings.compression, facts);
            return Ok(EncodedDocument { bytes: bytes.map_err(failed)?.into(), checksum });
        }
    };
    Ok(EncodedDocument { bytes: compressed(settings.compression, text).into(), checksum })
}

/// By namespace and name; the rest only makes the order complete.
fn sort(rows: &mut [&Row]) {
    rows.sort_unstable_by(|a, b| {
        (&a.key.namespace, &a.name, &a.key).cmp(&(&b.key.namespace, &b.name, &b.key))
    });
}

fn checksum_of_rows(rows: &[&Row]) -> String {
    let mut hasher = Sha256::new();
    rows.iter().for_each(|row| hasher.update(row.digest.0.to_be_bytes()));
    envelope::hex(&hasher.finalize())
}

/// Compresses without a time: the same text gives the same bytes.
fn compressed(compression: Compression, text: Vec<u8>) -> Vec<u8> {
    match compression {
        Compression::None | Compression::Snappy => text,
        Compression::Gzip => gzip(&text),
        Compression::Zstd => zstd::encode_all(&*text, 0).expect("memory takes everything"),
    }
}

#[cfg(test)]
mod tests;
