//! Documents in S3: the first one, and what a change of one row costs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use kollect_model::sink::SinkSpec;
use kollect_sinks::{Plan, Secrets, plan};
use kollect_testbed::S3;
use serde_json::json;

use super::{allocated, print_progress, rows::Rows, running::Running, settled};

/// How many changes of one row are measured.
const CHANGES: u32 = 5;

/// What documents of a format cost.
pub(crate) struct Document {
    pub(crate) bytes: usize,
    /// From the rows to the stored document.
    pub(crate) first: Duration,
    /// The same bytes, put by another client.
    pub(crate) bare: Duration,
    /// Most bytes in use above those before.
    pub(crate) peak: usize,
    /// One changed row, until document and record are stored.
    pub(crate) change: Duration,
    /// Bytes of the record.
    pub(crate) record: usize,
}

/// Writes `count` rows, then changes single rows.
pub(crate) async fn measure(server: &S3, format: &str, compression: &str, count: usize) -> Result<Document> {
    print_progress(format_args!("a document of {count} rows as {format}, {compression}"));
    let bucket = format!("{format}-{compression}");
    server.create_bucket(&bucket)?;
    let rows = Rows::filled(count)?;
    let before = settled().await;
    let peak = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let sampler = std::thread::spawn({
        let (peak, done) = (peak.clone(), done.clone());
        move || {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(allocated(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    let began = Instant::now();
    let mut running = Running::start(&rows, planned(server, &bucket, format, compression)?);
    running.compared().await?;
    let first = began.elapsed();
    done.store(true, Ordering::Relaxed);
    anyhow::ensure!(sampler.join().is_ok(), "the sampler panicked");
    let began = Instant::now();
    for (number, index) in (1..=CHANGES).zip((0..count).cycle()) {
        rows.change(index, number.into())?;
        running.written().await?;
    }
    let change = began.elapsed() / CHANGES;
    running.stop().await;
    let keys = server.keys(&bucket);
    let object = |is_record: bool| -> Result<Vec<u8>> {
        let key = keys.iter().find(|key| key.starts_with(".kollect") == is_record);
        server.object(&bucket, key.context("the object is missing")?).context("the object is missing")
    };
    let (document, record) = (object(false)?, object(true)?.len());
    let began = Instant::now();
    server.put(&bucket, "bare", &document)?;
    let bare = began.elapsed();
    let peak = peak.load(Ordering::Relaxed).saturating_sub(before);
    Ok(Document { bytes: document.len(), first, bare, peak, change, record })
}

fn planned(server: &S3, bucket: &str, format: &str, compression: &str) -> Result<Plan> {
    let spec = json!({
        "type": "s3", "endpoint": format!("{}/{bucket}", server.url()), "secretRef": { "name": "keys" },
        "serialization": { "format": format, "compression": compression },
    });
    let mut secrets = Secrets::default();
    let keys = [("accessKeyID", S3::ACCESS_KEY), ("secretAccessKey", S3::SECRET_KEY)];
    secrets.insert("spec.secretRef", keys.map(|(key, value)| (key.to_owned(), value.into())).into());
    let plan = plan(&SinkSpec::Snapshot(serde_json::from_value(spec)?));
    let plan = plan.and_then(|plan| plan.with_secrets(&secrets));
    plan.map_err(|errors| anyhow::anyhow!("{errors:?}"))
}
