//! A reader of the table: a trigger notifies it of committed rows, and counts them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt as _, stream};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::timeout,
};
use tokio_postgres::{AsyncMessage, Client, NoTls};

/// Many times longer than any step takes.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A database session of its own.
pub(crate) struct Reader {
    client: Client,
    /// UIDs of the objects whose rows were committed.
    committed: UnboundedReceiver<String>,
}

/// A row, and the value of an attribute that it must have.
pub(crate) struct Expected<'a> {
    /// Of the inventory and the target.
    pub(crate) namespace: &'a str,
    pub(crate) target: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) attribute: &'a str,
    pub(crate) value: &'a str,
}

impl Reader {
    pub(crate) async fn connect(dsn: &str) -> Result<Self> {
        let dsn = format!("{dsn}?application_name=reader");
        let (client, mut connection) = tokio_postgres::connect(&dsn, NoTls).await?;
        let (sender, committed) = unbounded_channel();
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(notification) = message {
                    // Fails when the reader was dropped.
                    sender.send(notification.payload().to_owned()).ok();
                }
            }
        });
        Ok(Self { client, committed })
    }

    /// Adds the trigger to a table with rows.
    pub(crate) async fn listen(&self) -> Result<()> {
        let statements = "CREATE TABLE writes (namespace text);
            CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
                INSERT INTO writes VALUES (coalesce(NEW.inventory_namespace, OLD.inventory_namespace));
                PERFORM pg_notify('rows', coalesce(NEW.source_uid, OLD.source_uid));
                RETURN NULL;
            END$$;
            CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON inventory
                FOR EACH ROW EXECUTE FUNCTION tell();
            LISTEN rows";
        Ok(self.client.batch_execute(statements).await?)
    }

    /// Waits until a row can be seen as it should be. Returns when that was.
    pub(crate) async fn wait_for_row(&mut self, expected: &Expected<'_>) -> Result<Instant> {
        let Expected { namespace, target, uid, attribute, value } = expected;
        // By the whole key: the planner has no statistics yet about the size of the table.
        let query = "SELECT payload #>> ARRAY['attributes', $4::text] FROM inventory
             WHERE cluster = '' AND inventory_namespace = $1 AND inventory_name = 'all'
                 AND target_name = $2 AND source_uid = $3";
        let query = self.client.prepare(query).await?;
        loop {
            let committed = timeout(TIMEOUT, self.committed.recv()).await.context("no change arrives")?;
            if committed.context("the reader lost its connection")? != *uid {
                continue;
            }
            let row = self.client.query_opt(&query, &[namespace, target, uid, attribute]).await?;
            if row.is_some_and(|row| row.get::<_, Option<&str>>(0) == Some(value)) {
                return Ok(Instant::now());
            }
        }
    }

    /// How many rows the table has; none if it does not exist.
    pub(crate) async fn rows(&self) -> Result<usize> {
        let exists = self.count("SELECT count(*) FROM pg_class WHERE relname = 'inventory'").await? > 0;
        if exists { self.count("SELECT count(*) FROM inventory").await } else { Ok(0) }
    }

    /// How many rows were written, of the inventories in a namespace and of all others.
    pub(crate) async fn writes(&self, namespace: &str) -> Result<(usize, usize)> {
        let query = "SELECT count(*) FILTER (WHERE namespace = $1),
                 count(*) FILTER (WHERE namespace <> $1) FROM writes";
        let row = self.client.query_one(query, &[&namespace]).await?;
        Ok((row.get::<_, i64>(0).try_into()?, row.get::<_, i64>(1).try_into()?))
    }

    /// The number of sessions of other clients.
    pub(crate) async fn sessions(&self) -> Result<usize> {
        let query = "SELECT count(*) FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND application_name <> 'reader'";
        self.count(query).await
    }

    async fn count(&self, query: &str) -> Result<usize> {
        Ok(self.client.query_one(query, &[]).await?.get::<_, i64>(0).try_into()?)
    }
}
