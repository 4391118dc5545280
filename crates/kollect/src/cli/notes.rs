//! What is worth knowing about the rows of a run: attributes without a value, and redacted ones.

use kollect_engine::store::{NullCause, NullCount, RedactionCount, StoreReader};
use kollect_model::row::TargetId;

/// Prints a line for each attribute of the targets that has no value in some rows, or redacted values. Values of another type than
/// declared are printed as problems.
pub(crate) fn print(rows: &StoreReader, targets: &[TargetId]) {
    for target in targets {
        let total = rows.count(target);
        for NullCount { attribute, cause, rows, object, found, .. } in rows.nulls(target) {
            match cause {
                NullCause::TypeMismatch => {}
                NullCause::Missing => {
                    eprintln!(
                        "note: target {target}: {attribute} has no value in {rows} of {total} rows, such as {object}"
                    );
                }
                NullCause::Failed => {
                    eprintln!(
                        "note: target {target}: {attribute} failed in {rows} of {total} rows, such as {object}: {found}"
                    );
                }
            }
        }
        for RedactionCount { attribute, rows, values, object } in rows.redactions(target) {
            let (noun, verb) = if values == 1 { ("value", "is") } else { ("values", "are") };
            eprintln!(
                "note: target {target}: {values} {noun} of {attribute} {verb} redacted in {rows} of {total} rows, such as {object}"
            );
        }
    }
}
