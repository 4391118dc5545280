//! The first fill of a table, compared with a bare COPY of the same rows.

use std::{
    pin::pin,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result};
use kollect_engine::store::Visibility;
use kollect_testbed::Postgres;
use serde_json::value::RawValue;
use tokio_postgres::{
    NoTls,
    binary_copy::BinaryCopyInWriter,
    types::{Json, ToSql, Type},
};

use super::rows::{Rows, target};

/// Texts of a row, in the order of the columns, without the payload and the times.
struct Encoded {
    before: Vec<String>,
    payload: Box<RawValue>,
    digest: String,
}

/// The rows as texts: the reference measurement does nothing but COPY.
pub(crate) struct Copy(Vec<Encoded>);

impl Copy {
    /// Takes the rows from a store.
    pub(crate) fn of(rows: &Rows) -> Result<Self> {
        let snapshot =
            rows.reader.snapshot(&[target()], Visibility::Everything).context("rows are pending")?;
        let encode = |row: &kollect_model::row::Row| {
            let key = &row.key;
            let before = [
                "",
                "team",
                "all",
                &key.target.name,
                &key.uid,
                row.target_namespace(),
                &key.group,
                &row.version,
                &key.kind,
                &key.namespace,
                &row.name,
                &key.namespace,
            ];
            Ok(Encoded {
                before: before.map(ToOwned::to_owned).into(),
                payload: serde_json::value::to_raw_value(row)?,
                digest: row.digest.to_string(),
            })
        };
        Ok(Self(snapshot.rows.values().map(|row| encode(row)).collect::<Result<_>>()?))
    }

    /// Copies them into a new table with the columns and indexes of another one.
    pub(crate) async fn run(&self, server: &Postgres, like: &str, table: &str) -> Result<Duration> {
        let (mut client, connection) = tokio_postgres::connect(&server.dsn(), NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(&format!("CREATE TABLE {table} (LIKE {like} INCLUDING ALL)")).await?;
        client.batch_execute("CHECKPOINT").await?;
        let now = SystemTime::now();
        let mut types = vec![Type::TEXT; 17];
        types[12] = Type::JSONB;
        types[14..].fill(Type::TIMESTAMPTZ);
        let began = Instant::now();
        let transaction = client.transaction().await?;
        let into = transaction.copy_in(&format!("COPY {table} FROM STDIN (FORMAT binary)")).await?;
        let mut writer = pin!(BinaryCopyInWriter::new(into, &types));
        for Encoded { before, payload, digest } in &self.0 {
            let payload = Json(payload);
            let mut values: Vec<&(dyn ToSql + Sync)> = before.iter().map(|text| text as _).collect();
            values.extend([&payload as &(dyn ToSql + Sync), digest, &now, &now, &now]);
            writer.as_mut().write(&values).await?;
        }
        writer.finish().await?;
        transaction.commit().await?;
        Ok(began.elapsed())
    }
}
