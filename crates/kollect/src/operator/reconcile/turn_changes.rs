//! What has changed since the last turn, and when the next one starts.

use std::time::Duration;

use kollect_engine::{collect::Collector, select::Namespaces, store::StoreReader};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use crate::operator::{
    binding_states::BindingStates, objects::ObjectWatches, probe::Probes, secrets::SecretWatches,
};

/// The pause in which changes are collected for one turn.
const COLLECT_PAUSE: Duration = Duration::from_millis(20);
/// The least interval between turns for collected or written rows, which change counts only.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// The longest interval between turns, to show that the loop is not stuck.
const HEARTBEAT: Duration = Duration::from_secs(30);

type KnownNamespaces = Option<std::sync::Arc<Namespaces>>;

/// Signals to the loop that something has changed.
pub(super) struct ChangeSignals {
    objects: watch::Receiver<()>,
    statuses: watch::Receiver<()>,
    secrets: watch::Receiver<()>,
    plans: watch::Receiver<()>,
    binding_states: watch::Receiver<()>,
    counts: watch::Receiver<()>,
    probes: watch::Receiver<()>,
    visibilities: watch::Receiver<()>,
    rows: watch::Receiver<()>,
    coverage: watch::Receiver<()>,
    namespaces: watch::Receiver<KnownNamespaces>,
    last_turn: Instant,
}

/// What has changed since the last turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnChanges {
    /// Specs, Secrets, or plans of sinks: all objects are resolved again.
    pub(super) definitions: bool,
    /// Namespaces or their labels.
    pub(super) namespaces: bool,
    /// Something else; the parts of the operator know the affected objects.
    pub(super) others: bool,
}

impl TurnChanges {
    /// Everything is new.
    pub(super) const EVERYTHING: Self = Self { definitions: true, namespaces: true, others: true };

    pub(super) fn is_nothing(self) -> bool {
        !(self.definitions || self.namespaces || self.others)
    }
}

fn take<T>(receiver: &mut watch::Receiver<T>) -> bool {
    let changed = receiver.has_changed().unwrap_or(false);
    receiver.mark_unchanged();
    changed
}

impl ChangeSignals {
    pub(super) fn of(
        (objects, secrets, plans): (&ObjectWatches, &SecretWatches, &watch::Receiver<()>),
        (binding_states, probes): (&BindingStates, &Probes),
        (collector, rows): (&Collector, &StoreReader),
    ) -> Self {
        Self {
            objects: objects.changes(),
            statuses: objects.status_changes(),
            secrets: secrets.changes(),
            plans: plans.clone(),
            binding_states: binding_states.changes(),
            counts: binding_states.counts(),
            probes: probes.changes(),
            visibilities: rows.visibility_changes(),
            rows: rows.target_changes(),
            coverage: collector.coverage().changes(),
            namespaces: collector.namespaces(),
            last_turn: Instant::now(),
        }
    }

    /// What has changed since the last call.
    pub(super) fn take(&mut self) -> TurnChanges {
        self.last_turn = Instant::now();
        let specs = [&mut self.objects, &mut self.secrets, &mut self.plans].map(take);
        let others = [
            &mut self.statuses,
            &mut self.binding_states,
            &mut self.counts,
            &mut self.probes,
            &mut self.visibilities,
            &mut self.rows,
            &mut self.coverage,
        ];
        TurnChanges {
            definitions: specs.contains(&true),
            namespaces: take(&mut self.namespaces),
            others: others.map(take).contains(&true),
        }
    }

    /// Returns when something has changed, at `due`, or at the next heartbeat.
    pub(super) async fn wait(&mut self, due: Option<Instant>) {
        let heartbeat = self.last_turn + HEARTBEAT;
        let Self {
            objects,
            statuses,
            secrets,
            plans,
            binding_states,
            counts,
            probes,
            visibilities,
            rows,
            coverage,
            namespaces,
            last_turn,
        } = self;
        let counted = async {
            time::sleep_until(*last_turn + COUNT_INTERVAL).await;
            tokio::select! {
                // The next turn handles both.
                biased;
                changed = counts.changed() => changed,
                changed = rows.changed() => changed,
            }
        };
        tokio::select! {
            // Every branch starts the next turn, which handles all changes.
            biased;
            Ok(()) = objects.changed() => objects.mark_changed(),
            Ok(()) = statuses.changed() => statuses.mark_changed(),
            Ok(()) = secrets.changed() => secrets.mark_changed(),
            Ok(()) = plans.changed() => plans.mark_changed(),
            Ok(()) = binding_states.changed() => binding_states.mark_changed(),
            Ok(()) = probes.changed() => probes.mark_changed(),
            Ok(()) = visibilities.changed() => visibilities.mark_changed(),
            Ok(()) = coverage.changed() => coverage.mark_changed(),
            Ok(()) = namespaces.changed() => namespaces.mark_changed(),
            Ok(()) = counted => {
                // Which of the two has changed does not matter.
                counts.mark_changed();
            }
            () = time::sleep_until(due.map_or(heartbeat, |due| due.min(heartbeat))) => return,
        }
        time::sleep(COLLECT_PAUSE).await;
    }
}
