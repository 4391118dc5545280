//! How long it takes until another client can see a change.
//!
//! A trigger notifies the reader of each committed row, because polling would take processor time from the
//! measured process; the reader then reads the row, and the clock stops when it has the expected content.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::{StreamExt as _, future::try_join_all, stream};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{sleep_until, timeout},
};
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use super::{
    destinations::Schema,
    rows::{Rows, uid},
};

const LIMIT: Duration = Duration::from_secs(30);

/// Times, sorted.
pub(crate) struct Lags(Vec<Duration>);

impl Lags {
    fn new(mut lags: Vec<Duration>) -> Self {
        lags.sort_unstable();
        Self(lags)
    }

    /// This percentage of the lags is not above the result, in milliseconds.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let index = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(index).map_or(f64::INFINITY, |lag| lag.as_secs_f64() * 1e3)
    }
}

/// A change of a row.
#[derive(Clone, Copy)]
pub(crate) enum RowEdit {
    /// The row gets the content with this number.
    Change(u64),
    /// The row is removed.
    Remove,
}

/// When rows changed, and the expected digests; `None` for removed rows.
type Expected = HashMap<String, (Instant, Option<String>)>;

fn edit_row(rows: &Rows, index: usize, edit: RowEdit, expected: &Mutex<Expected>) -> Result<()> {
    // Locked until the expectation is inserted: the reader may be faster.
    let mut expected = expected.lock().unwrap_or_else(PoisonError::into_inner);
    let began = Instant::now();
    let digest = match edit {
        RowEdit::Change(edition) => Some(rows.change(index, edition)?.to_string()),
        RowEdit::Remove => {
            rows.remove(index)?;
            None
        }
    };
    expected.insert(uid(index), (began, digest));
    Ok(())
}

/// Changes one row after the other; each must be seen before the next.
pub(crate) async fn one_by_one(
    rows: &Rows,
    reader: &mut Reader,
    indexes: impl Iterator<Item = usize>,
    edit: RowEdit,
) -> Result<Lags> {
    let expected = Mutex::default();
    let mut lags = Vec::new();
    for index in indexes {
        edit_row(rows, index, edit, &expected)?;
        let needed = lags.len() + 1;
        while lags.len() < needed {
            lags.extend(reader.next_lags(&expected).await?);
        }
    }
    Ok(Lags::new(lags))
}

/// Changes `rate` rows per second, without waiting until the reader has seen them.
pub(crate) async fn paced(
    rows: &Arc<Rows>,
    reader: &mut Reader,
    indexes: std::ops::Range<usize>,
    rate: u32,
    edit: RowEdit,
) -> Result<Lags> {
    let expected = Arc::new(Mutex::default());
    let (total, began) = (indexes.len(), Instant::now());
    let editing = {
        let (rows, expected) = (rows.clone(), expected.clone());
        tokio::spawn(async move {
            for (number, index) in (0..).zip(indexes) {
                sleep_until((began + Duration::from_secs(1) * number / rate).into()).await;
                edit_row(&rows, index, edit, &expected)?;
            }
            anyhow::Ok(())
        })
    };
    let mut lags = Vec::new();
    while lags.len() < total {
        lags.extend(reader.next_lags(&expected).await?);
    }
    editing.await??;
    Ok(Lags::new(lags))
}

/// A reader with its own session.
pub(crate) struct Reader {
    client: Client,
    query: Statement,
    /// UIDs of committed rows.
    committed: UnboundedReceiver<String>,
}

impl Reader {
    /// Connects, and adds the trigger.
    pub(crate) async fn connect(destination: &Schema<'_>) -> Result<Self> {
        let (client, mut connection) = tokio_postgres::connect(&destination.server.dsn(), NoTls).await?;
        let (sender, committed) = unbounded_channel();
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(notification) = message {
                    // The receiver may be closed already.
                    sender.send(notification.payload().to_owned()).ok();
                }
            }
        });
        let (schema, table) = (destination.name, destination.table());
        client
            .batch_execute(&format!(
                "CREATE FUNCTION {schema}.tell() RETURNS trigger LANGUAGE plpgsql AS
                     $$BEGIN PERFORM pg_notify('{schema}', coalesce(NEW.source_uid, OLD.source_uid)); RETURN NULL; END$$;
                 CREATE TRIGGER tell AFTER UPDATE OR DELETE ON {table}
                     FOR EACH ROW EXECUTE FUNCTION {schema}.tell();
                 LISTEN {schema}"
            ))
            .await?;
        let query = format!(
            "SELECT row_digest FROM {table}
             WHERE cluster = '' AND inventory_namespace = 'team' AND inventory_name = 'all'
                 AND target_name = 'web' AND source_uid = $1"
        );
        let query = client.prepare(&query).await?;
        Ok(Self { client, query, committed })
    }

    /// Waits until rows are committed, and reads them. Returns the lag of each row.
    async fn next_lags(&mut self, expected: &Mutex<Expected>) -> Result<Vec<Duration>> {
        let first = timeout(LIMIT, self.committed.recv()).await.context("no change arrives")?;
        let mut uids = HashSet::from([first.context("the reader lost its connection")?]);
        while let Ok(uid) = self.committed.try_recv() {
            uids.insert(uid);
        }
        // By the whole key, all sent at once: the planner has no statistics of the table yet.
        let read_row = async |uid: String| {
            let found = self.client.query_opt(&self.query, &[&uid]).await?;
            anyhow::Ok((uid, found.map(|row| row.get::<_, String>(0))))
        };
        let found = try_join_all(uids.into_iter().map(read_row)).await?;
        let now = Instant::now();
        let mut expected = expected.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lags = Vec::new();
        for (uid, found) in found {
            if expected.get(&uid).is_some_and(|(_, digest)| *digest == found) {
                lags.extend(expected.remove(&uid).map(|(began, _)| now.duration_since(began)));
            }
        }
        Ok(lags)
    }
}
