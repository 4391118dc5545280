//! Reads statuses: of inventories what they report about their sinks, of all objects whether their rows are exported.

use kollect_model::batch::InventoryId;
use serde_json::Value;

use super::{
    expected_rows::{StoredInventory, inventory_id},
    sink_servers::destination_of,
    specs::{name, text},
};

/// A line of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatusExport {
    /// Name of the sink.
    pub(super) sink: String,
    pub(super) destination: String,
    pub(super) inventory: InventoryId,
    /// Destinations that it has left, and that still hold rows.
    pub(super) left: Vec<StoredInventory>,
    /// How many rows the sink has acknowledged to hold, and the sum of their digests, if it has.
    pub(super) acknowledged: Option<(usize, u128)>,
    pub(super) synced: bool,
    /// When rows were written last.
    pub(super) written_at: String,
    /// Why it is not synced.
    pub(super) error: String,
}

/// The lines of a status.
pub(super) fn exports(inventory: &Value) -> Vec<StatusExport> {
    let is_synced = |condition: &Value| condition["type"] == "Synced" && condition["status"] == "True";
    let stored = |line: &Value| {
        let id = inventory_id(text(&line["cluster"]), name(inventory));
        (destination_of(text(&line["destination"])).to_owned(), id)
    };
    let export = |line: &Value| StatusExport {
        sink: text(&line["name"]).to_owned(),
        destination: stored(&line["place"]).0,
        inventory: stored(&line["place"]).1,
        left: line["left"].as_array().into_iter().flatten().map(stored).collect(),
        acknowledged: acknowledged(line),
        synced: line["conditions"].as_array().is_some_and(|all| all.iter().any(is_synced)),
        written_at: text(&line["lastExportTime"]).to_owned(),
        error: text(&line["lastError"]).to_owned(),
    };
    inventory["status"]["sinkExports"].as_array().into_iter().flatten().map(export).collect()
}

/// Checks that what an inventory reports about all of its sinks agrees with their lines: it has reached the smallest
/// revision, is Ready as Exported only if all of them are synced, and is not Ready while it is Degraded.
pub(super) fn check_summary(inventory: &Value, sinks: &[String]) -> Result<(), String> {
    let status = &inventory["status"];
    let lines: Vec<&Value> = status["sinkExports"].as_array().into_iter().flatten().collect();
    let line = |sink: &String| lines.iter().find(|line| text(&line["name"]) == format!("database/{sink}"));
    let revisions: Vec<Option<i64>> =
        sinks.iter().map(|sink| line(sink).and_then(|line| line["revision"].as_i64())).collect();
    let observed_revision = status["observedRevision"].as_i64();
    let condition = |type_: &str| {
        let all = status["conditions"].as_array().into_iter().flatten();
        all.clone().find(|condition| condition["type"] == type_ && condition["status"] == "True")
    };
    let ready = condition("Ready");
    let synced = exports(inventory).into_iter().filter(|export| export.synced).count();
    let is_exported = ready.is_some_and(|ready| ready["reason"] == "Exported");
    if observed_revision.is_some() && revisions.iter().any(|revision| *revision < observed_revision) {
        return Err(format!("a sink has a smaller revision than the inventory reports: {status}"));
    }
    if is_exported && synced < sinks.len() || ready.is_some() && condition("Degraded").is_some() {
        return Err(format!("Ready contradicts the conditions of the sinks: {status}"));
    }
    Ok(())
}

fn acknowledged(line: &Value) -> Option<(usize, u128)> {
    let rows = usize::try_from(line["rows"].as_i64()?).unwrap();
    Some((rows, u128::from_str_radix(text(&line["lastChecksum"]), 16).unwrap()))
}

/// The generation whose rows all sinks hold, if a status reports it.
pub(super) fn exported(object: &Value) -> Option<i64> {
    let conditions = object["status"]["conditions"].as_array()?;
    let exported = conditions.iter().find(|condition| condition["type"] == "Exported")?;
    if exported["status"] == "True" { exported["observedGeneration"].as_i64() } else { None }
}

/// The generation of an object.
pub(super) fn generation(object: &Value) -> Option<i64> {
    object["metadata"]["generation"].as_i64()
}
