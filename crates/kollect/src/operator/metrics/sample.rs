//! The last sample of the series of each profile, and when it is recomputed.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kollect_engine::store::{StoreReader, Visibility};
use kollect_model::{
    crd::{profile::ProfileMetric, shapes::Gvk},
    row::TargetId,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::time::Instant;

use super::{
    profile_series::{self, KindSeries},
    view::MetricsView,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SeriesName {
    profile: String,
    gvk: String,
    series: String,
}

/// The input of a sample; equal input gives an equal sample.
#[derive(Clone, Default, PartialEq)]
struct SampleInput {
    targets: Vec<TargetId>,
    kinds: Vec<Gvk>,
    metrics: Vec<ProfileMetric>,
    attributes: Vec<String>,
    revision: u64,
}

struct Sample {
    input: SampleInput,
    taken: Instant,
    kinds: Arc<BTreeMap<Gvk, KindSeries>>,
}

/// The last sample of each profile.
#[derive(Default)]
pub(super) struct Samples {
    last: Mutex<BTreeMap<String, Sample>>,
    capped: Family<SeriesName, Counter>,
}

impl Samples {
    #[expect(clippy::disallowed_methods, reason = "it has labels, and is documented")]
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "kollect_custom_resource_labeled_series_capped",
            "Combinations of label values that were left out, in each sample",
            self.capped.clone(),
        );
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Sample>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The series of all profiles whose targets have been listed.
    pub(super) fn read(&self) -> Vec<(String, Arc<BTreeMap<Gvk, KindSeries>>)> {
        self.lock().iter().map(|(profile, sample)| (profile.clone(), sample.kinds.clone())).collect()
    }

    /// Recomputes samples whose input has changed, but not before the interval is over and not while the first list of
    /// a target is running. Returns whether all samples are up to date.
    pub(super) fn refresh(&self, view: &MetricsView, rows: &StoreReader, interval: Duration) -> bool {
        let mut is_done = true;
        let mut profiles: BTreeMap<&str, SampleInput> = BTreeMap::new();
        for target in &view.targets {
            let input = profiles.entry(&target.profile).or_default();
            input.targets.push(target.id.clone());
            input.kinds.extend(target.kinds.iter().cloned());
            input.metrics.clone_from(&target.metrics);
            input.attributes.clone_from(&target.attributes);
        }
        self.forget(|profile| !profiles.contains_key(profile));
        for (profile, mut input) in profiles {
            input.kinds.sort();
            input.kinds.dedup();
            // Changes of rows from here on are in the next sample at the latest.
            input.revision = rows.revision(&input.targets);
            let now = Instant::now();
            let known =
                self.lock().get(profile).map(|sample| (sample.input == input, sample.taken + interval));
            if known.is_some_and(|(is_same, _)| is_same) {
                continue;
            }
            let pending = || {
                rows.visibilities(&input.targets)
                    .values()
                    .any(|visibility| *visibility == Visibility::Pending)
            };
            if known.is_some_and(|(_, due)| now < due) || pending() {
                is_done = false;
                continue;
            }
            let all_rows: Vec<_> = input.targets.iter().flat_map(|target| rows.rows(target)).collect();
            let kinds = profile_series::sum(&input.metrics, &input.attributes, &input.kinds, &all_rows);
            for (name, dropped) in labeled(profile, &kinds) {
                self.capped.get_or_create(&name).inc_by(dropped);
            }
            let sample = Sample { input, taken: now, kinds: Arc::new(kinds) };
            let replaced = self.lock().insert(profile.to_owned(), sample);
            self.forget_counts(profile, replaced);
        }
        is_done
    }

    fn forget(&self, is_removed: impl Fn(&str) -> bool) {
        let removed: Vec<_> = self.lock().extract_if(.., |profile, _| is_removed(profile)).collect();
        removed.into_iter().for_each(|(profile, sample)| self.forget_counts(&profile, Some(sample)));
    }

    /// Forgets the counts of series that the profile had and does not have any more.
    fn forget_counts(&self, profile: &str, before: Option<Sample>) {
        let last = self.lock();
        let now: HashSet<SeriesName> = last
            .get(profile)
            .map(|sample| labeled(profile, &sample.kinds).map(|(name, _)| name).collect())
            .unwrap_or_default();
        let Some(before) = before else { return };
        for (name, _) in labeled(profile, &before.kinds).filter(|(name, _)| !now.contains(name)) {
            self.capped.remove(&name);
        }
    }
}

/// The series with labels, and how many combinations each has left out.
fn labeled<'a>(
    profile: &'a str,
    kinds: &'a BTreeMap<Gvk, KindSeries>,
) -> impl Iterator<Item = (SeriesName, u64)> + 'a {
    kinds.iter().flat_map(move |(gvk, kind)| {
        let labeled = kind.series.iter().filter(|series| !series.labels.is_empty());
        labeled.map(move |series| {
            let name =
                SeriesName { profile: profile.to_owned(), gvk: gvk.to_string(), series: series.name.clone() };
            (name, series.dropped as u64)
        })
    })
}
