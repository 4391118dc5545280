//! Gauges that are computed for each scrape. Nothing here iterates over rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Result},
    sync::Arc,
    time::SystemTime,
};

use kollect_engine::{
    clock,
    coverage::{Coverage, WatchState},
    store::StoreReader,
    tasks::Tasks,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet},
    metrics::MetricType,
};

use super::{MetricsState, view::MetricsView};
use crate::operator::binding_states::{BindingState, BindingStates};

/// Encodes the current state for a scrape.
pub(super) struct Scrape(pub(super) Arc<MetricsState>);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result {
        let MetricsState { sources, samples, .. } = &*self.0;
        let view = self.0.view();
        let leads = sources.leadership.borrow().term().is_some();
        process(&mut encoder, leads, (sources.discovery)())?;
        tasks(&mut encoder, &sources.tasks)?;
        rows(&mut encoder, &view, &sources.rows)?;
        coverage(&mut encoder, &sources.coverage)?;
        bindings(&mut encoder, &BindingNumbers::of(&view, &sources.binding_states, leads, clock::now()))?;
        series(&mut encoder, &samples.read())
    }
}

type LabelSet<const N: usize> = [(&'static str, String); N];

fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    lines: impl IntoIterator<Item = (L, V)>,
) -> Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    lines.into_iter().try_for_each(|(labels, value)| metric.encode_family(&labels)?.encode_gauge(&value))
}

/// `name` is without `_total`.
fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    lines: impl IntoIterator<Item = (L, V)>,
) -> Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    lines.into_iter().try_for_each(|(labels, value)| {
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    })
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: usize) -> Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

fn process(encoder: &mut DescriptorEncoder<'_>, leads: bool, discovery: Option<bool>) -> Result {
    encoder
        .encode_descriptor("kollect_build", "What is running", None, MetricType::Info)?
        .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
    gauge(encoder, "kollect_leader", "Whether this replica writes", usize::from(leads))?;
    if let Some(healthy) = discovery {
        let help = "Whether all API groups answered at the last discovery";
        gauge(encoder, "kollect_discovery_healthy", help, usize::from(healthy))?;
    }
    Ok(())
}

fn tasks(encoder: &mut DescriptorEncoder<'_>, tasks: &Tasks) -> Result {
    let help = "Tasks that panicked and were started again, by what they do";
    let lines = tasks.restarts().map(|(kind, restarts)| ([("task", kind.label())], restarts));
    counters(encoder, "kollect_task_restarts", help, lines)
}

fn rows(encoder: &mut DescriptorEncoder<'_>, view: &MetricsView, rows: &StoreReader) -> Result {
    gauge(encoder, "kollect_collect_items_total", "Rows of all targets", rows.total())?;
    let targets = view.inventories.iter().flat_map(|inventory| &inventory.targets);
    let sum = targets.map(|target| rows.count(target)).sum();
    let help = "Rows of all inventories; a row of two inventories counts twice";
    gauge(encoder, "kollect_inventory_items_total", help, sum)?;
    let help = "Rows of all targets with the profile";
    let lines = collected(view, rows);
    let lines = lines.into_iter().map(|((profile, gvk), rows)| ([("profile", profile), ("gvk", gvk)], rows));
    gauges(encoder, "kollect_collected_objects", help, lines)?;
    let help = "Rows in which an attribute of the profile has no value, and why";
    let lines = nulls(view, rows).into_iter().map(|((profile, attribute, cause), rows)| {
        ([("profile", profile), ("attribute", attribute), ("cause", cause.to_owned())], rows)
    });
    gauges(encoder, "kollect_null_attributes", help, lines)?;
    let help =
        "Values of an attribute of the profile that are redacted, or texts with a credential that was masked";
    let lines = redactions(view, rows).into_iter();
    let lines = lines
        .map(|((profile, attribute), values)| ([("profile", profile), ("attribute", attribute)], values));
    gauges(encoder, "kollect_redacted_values", help, lines)
}

/// Redacted values, by profile and attribute.
fn redactions(view: &MetricsView, rows: &StoreReader) -> BTreeMap<(String, String), usize> {
    let mut sums = BTreeMap::new();
    for target in &view.targets {
        for (attribute, values) in rows.redacted_values(&target.id) {
            *sums.entry((target.profile.clone(), attribute.to_string())).or_default() += values;
        }
    }
    sums
}

/// Rows in which attributes have no value, by profile, attribute and cause.
fn nulls(view: &MetricsView, rows: &StoreReader) -> BTreeMap<(String, String, &'static str), usize> {
    let mut sums = BTreeMap::new();
    for target in &view.targets {
        for ((attribute, cause), rows) in rows.null_rows(&target.id) {
            let key = (target.profile.clone(), attribute.to_string(), cause.as_str());
            *sums.entry(key).or_default() += rows;
        }
    }
    sums
}

/// Rows by profile and kind.
pub(super) fn collected(view: &MetricsView, rows: &StoreReader) -> BTreeMap<(String, String), usize> {
    let mut sums: BTreeMap<(String, String), usize> = BTreeMap::new();
    for target in &view.targets {
        for gvk in &target.kinds {
            sums.entry((target.profile.clone(), gvk.to_string())).or_default();
        }
        // A suspended target keeps its rows but selects no kind.
        for (gvk, count) in rows.counts(&target.id) {
            let same_kind = |selected: &&_| {
                let selected: &kollect_model::crd::shapes::Gvk = selected;
                (&selected.group, &selected.kind) == (&gvk.group, &gvk.kind)
            };
            let gvk = target.kinds.iter().find(same_kind).unwrap_or(&gvk).to_string();
            *sums.entry((target.profile.clone(), gvk)).or_default() += count;
        }
    }
    sums
}

fn coverage(encoder: &mut DescriptorEncoder<'_>, coverage: &Coverage) -> Result {
    let (mut blind, mut synced) = (BTreeSet::new(), BTreeMap::new());
    coverage.visit(|watched, known| {
        let (gvk, namespace) =
            (watched.gvk.to_string(), watched.namespace.as_deref().unwrap_or_default().to_owned());
        if let WatchState::Blind { blindness, .. } = &known.state {
            blind.insert((gvk.clone(), namespace.clone(), blindness.reason));
        }
        // A kind may have several watches in a namespace; it is synced only if all of them are.
        let seen = matches!(known.state, WatchState::Synced { .. } | WatchState::Absent);
        *synced.entry((gvk, namespace)).or_insert(true) &= seen;
    });
    let help =
        "Kinds that cannot be seen in a namespace now, and why; an empty namespace is the whole cluster";
    let lines = blind.into_iter().map(|(gvk, namespace, reason)| -> (LabelSet<3>, u32) {
        ([("gvk", gvk), ("namespace", namespace), ("reason", reason.to_string())], 1)
    });
    gauges(encoder, "kollect_coverage_blind", help, lines)?;
    let help =
        "Whether all objects of a kind in a namespace are known; an empty namespace is the whole cluster";
    let lines = synced.into_iter().map(|((gvk, namespace), seen)| -> (LabelSet<2>, u32) {
        ([("gvk", gvk), ("namespace", namespace)], u32::from(seen))
    });
    gauges(encoder, "kollect_watch_synced", help, lines)?;
    let help = "Watches that work again, by why they did not";
    let lines = coverage.restarts().into_iter();
    let lines =
        lines.map(|(reason, count)| -> (LabelSet<1>, u64) { ([("reason", reason.to_string())], count) });
    counters(encoder, "kollect_watch_restarts", help, lines)
}

/// Numbers of one binding.
#[derive(Debug, PartialEq)]
pub(super) struct BindingNumbers {
    pub(super) inventory: String,
    pub(super) sink: String,
    /// `None`: unknown, or nothing is to be written, because this process does not lead or the inventory is suspended.
    pub(super) lag: Option<f64>,
    /// Rows that the sink holds, refuses and does not have yet; `None` before it was compared.
    pub(super) rows: Option<[usize; 3]>,
    pub(super) drifted: u64,
    pub(super) written: u64,
}

impl BindingNumbers {
    pub(super) fn of(
        view: &MetricsView,
        binding_states: &BindingStates,
        leads: bool,
        now: SystemTime,
    ) -> Vec<Self> {
        let mut bound = Vec::new();
        for inventory in &view.inventories {
            for binding in &inventory.sinks {
                let numbers = binding_states.read(binding, |state| Self {
                    inventory: inventory.name.clone(),
                    sink: binding.sink.to_string(),
                    lag: if leads && !inventory.suspended { lag(state, now) } else { None },
                    // A standby does not know what the leader has written.
                    rows: if leads { rows_of(state) } else { None },
                    drifted: state.drifted,
                    written: state.written,
                });
                bound.extend(numbers);
            }
        }
        bound
    }

    fn labels(&self) -> LabelSet<2> {
        [("inventory", self.inventory.clone()), ("sink", self.sink.clone())]
    }
}

/// Rows that the sink holds, refuses and does not have yet.
fn rows_of(state: &BindingState) -> Option<[usize; 3]> {
    let progress = state.progress_snapshot();
    let pending = progress.pending.map_or(0, |pending| pending.rows);
    progress.acknowledged.map(|acknowledged| [acknowledged.rows, state.refused.len(), pending])
}

/// For how many seconds the sink has lacked rows that it should have.
fn lag(state: &BindingState, now: SystemTime) -> Option<f64> {
    let lag = state.lag(now).map(|lag| lag.as_secs_f64());
    lag.or_else(|| state.progress_snapshot().acknowledged.map(|_| 0.0))
}

fn bindings(encoder: &mut DescriptorEncoder<'_>, bound: &[BindingNumbers]) -> Result {
    let help = "For how long the sink has lacked rows that it should hold; 0 if it holds them";
    let lines = bound.iter().filter_map(|bound| Some((bound.labels(), bound.lag?)));
    gauges(encoder, "kollect_binding_lag_seconds", help, lines)?;
    let lines = bound.iter().filter_map(|bound| {
        let [held_rows, refused_rows, pending_rows] = bound.rows?;
        let line = |state: &str, rows: usize| {
            let [inventory, sink] = bound.labels();
            ([inventory, sink, ("state", state.to_owned())], rows)
        };
        Some([line("held", held_rows), line("refused", refused_rows), line("pending", pending_rows)])
    });
    let help = "Rows that the sink holds, that it refuses, and that it does not have yet";
    gauges(encoder, "kollect_binding_rows", help, lines.flatten())?;
    let lines = bound.iter().map(|bound| (bound.labels(), bound.drifted));
    let help = "Rows that others had changed in the sink, and that were repaired";
    counters(encoder, "kollect_drift_repaired", help, lines)?;
    let lines = bound.iter().map(|bound| (bound.labels(), bound.written));
    let help = "Rows that were added, changed or removed in the sink";
    counters(encoder, "kollect_rows_written", help, lines)
}

type SampledSeries =
    (String, Arc<BTreeMap<kollect_model::crd::shapes::Gvk, super::profile_series::KindSeries>>);

fn series(encoder: &mut DescriptorEncoder<'_>, samples: &[SampledSeries]) -> Result {
    let kinds = || {
        let kinds = samples.iter().flat_map(|(profile, kinds)| kinds.iter().map(move |kind| (profile, kind)));
        kinds.map(|(profile, (gvk, kind))| (profile, gvk.to_string(), kind))
    };
    let common_labels = |profile: &str, gvk: &str, series: &str| {
        let text = |text: &str| text.to_owned();
        [("profile", text(profile)), ("gvk", text(gvk)), ("series", text(series))]
    };
    let sums = kinds().flat_map(|(profile, gvk, kind)| {
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
        let objects = (common_labels(profile, &gvk, "object_count"), kind.objects as f64);
        let series = kind.series.iter().filter(|series| series.name != "object_count");
        let series = series.map(|series| (common_labels(profile, &gvk, &series.name), series.sum));
        std::iter::once(objects).chain(series.collect::<Vec<_>>())
    });
    let help = "Objects of a profile, and sums of their attributes";
    gauges(encoder, "kollect_custom_resource_series", help, sums)?;
    let help = "Sums of attributes by other attributes";
    let name = "kollect_custom_resource_labeled_series";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (profile, gvk, kind) in kinds() {
        for series in &kind.series {
            for (tuple, sum) in &series.tuples {
                let other_labels = series.labels.iter().map(String::as_str).zip(tuple.iter().cloned());
                let labels: Vec<(&str, String)> =
                    common_labels(profile, &gvk, &series.name).into_iter().chain(other_labels).collect();
                metric.encode_family(&labels)?.encode_gauge(sum)?;
            }
        }
    }
    Ok(())
}
