//! A NATS stream with a message per row. A subscriber counts.

use anyhow::{Context, Result};
use async_nats::{Client, Subscriber};
use futures::{FutureExt as _, StreamExt as _};
use kollect_model::sink::SinkSpec;
use kollect_sinks::Plan;
use kollect_testbed::Nats;
use serde_json::json;
use tokio::{sync::Mutex, task::unconstrained};

use super::{BenchDestination, planned_spec};

/// Subjects below a name, in a stream of that name.
pub(crate) struct Stream<'a> {
    pub(crate) server: &'a Nats,
    pub(crate) name: &'static str,
    subscription: Mutex<Option<Subscription>>,
}

struct Subscription {
    client: Client,
    messages: Subscriber,
    count: usize,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(server: &'a Nats, name: &'static str) -> Self {
        Self { server, name, subscription: Mutex::default() }
    }
}

impl BenchDestination for Stream<'_> {
    fn plan(&self) -> Result<Plan> {
        let spec = json!({
            "type": "nats",
            "mode": "rows",
            "nats": { "url": self.server.url(), "subject": self.name, "stream": self.name },
        });
        planned_spec(&SinkSpec::Event(serde_json::from_value(spec)?))
    }

    async fn count(&self) -> Result<()> {
        // The queue must hold all messages that arrive between two reads.
        let options = async_nats::ConnectOptions::new().subscription_capacity(1 << 20);
        let client = options.connect(self.server.url()).await?;
        let messages = client.subscribe(format!("{}.default.team.all.*.*.*", self.name)).await?;
        client.flush().await?;
        *self.subscription.lock().await = Some(Subscription { client, messages, count: 0 });
        Ok(())
    }

    async fn written(&self) -> Result<usize> {
        let mut subscription = self.subscription.lock().await;
        let Subscription { client, messages, count } = subscription.as_mut().context("no subscription")?;
        // The answer arrives after all messages that the server had taken before. `flush` does not wait for them.
        let answer = client.new_inbox();
        let mut end = client.subscribe(answer.clone()).await?;
        client.publish(answer, "end".into()).await?;
        end.next().await.context("the server is gone")?;
        // Unconstrained, because the runtime would report no more messages after some number of them.
        while let Some(Some(_)) = unconstrained(messages.next()).now_or_never() {
            *count += 1;
        }
        Ok(*count)
    }
}
