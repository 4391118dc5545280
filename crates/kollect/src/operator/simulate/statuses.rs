//! What statuses of inventories say about sinks.

use kollect_model::batch::InventoryId;
use serde_json::Value;

use super::{
    sink_servers::destination_of,
    specs::{name, text},
    truth::{Place, inventory_id},
};

/// A line of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// Name of the sink.
    pub(super) sink: String,
    pub(super) destination: String,
    pub(super) inventory: InventoryId,
    /// Destinations that it has left, and that still hold rows.
    pub(super) left: Vec<Place>,
    pub(super) rows: i64,
    pub(super) synced: bool,
    /// When rows were written last.
    pub(super) written_at: String,
    /// Why it is not synced.
    pub(super) error: String,
}

/// The lines of a status.
pub(super) fn exports(inventory: &Value) -> Vec<Export> {
    let is_synced = |condition: &Value| condition["type"] == "Synced" && condition["status"] == "True";
    let place = |place: &Value| {
        let id = inventory_id(text(&place["cluster"]), name(inventory));
        (destination_of(text(&place["destination"])).to_owned(), id)
    };
    let export = |line: &Value| Export {
        sink: text(&line["name"]).to_owned(),
        destination: place(&line["place"]).0,
        inventory: place(&line["place"]).1,
        left: line["left"].as_array().into_iter().flatten().map(place).collect(),
        rows: line["rows"].as_i64().unwrap_or(0),
        synced: line["conditions"].as_array().is_some_and(|all| all.iter().any(is_synced)),
        written_at: text(&line["lastExportTime"]).to_owned(),
        error: text(&line["lastError"]).to_owned(),
    };
    inventory["status"]["sinkExports"].as_array().into_iter().flatten().map(export).collect()
}
