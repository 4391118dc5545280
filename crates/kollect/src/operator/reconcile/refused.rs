//! Secrets whose contents a sink has refused: they are read again, because they may have changed since.

use std::collections::BTreeMap;

use kollect_model::binding::BindingName;

use super::{Operator, connection::tested_sink};
use crate::{
    operator::{bindings::binding_name, objects::Known, probe::Probed},
    world::{Resolved, SinkKey, World},
};

/// Who was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refused {
    Binding(BindingName),
    Probe(Probed),
}

/// How many attempts of each were refused.
#[derive(Default)]
pub(super) struct Refusals(BTreeMap<Refused, u64>);

impl Refusals {
    /// Takes the counts of now. Answers those that have grown.
    fn grown(&mut self, now: BTreeMap<Refused, u64>) -> Vec<Refused> {
        let grown = now.iter().filter(|(who, count)| **count > self.0.get(who).copied().unwrap_or(0));
        let grown = grown.map(|(who, _)| who.clone()).collect();
        self.0 = now;
        grown
    }
}

impl Operator {
    /// Reads the Secrets of sinks that have refused an attempt since the last turn.
    pub(super) fn read_refused_secrets(&mut self, known: &Known, world: &World, resolved: &Resolved) {
        let mut sinks: BTreeMap<Refused, SinkKey> = BTreeMap::new();
        let mut counts = BTreeMap::new();
        for (name, inventory) in &resolved.inventories {
            for sink in &inventory.sinks {
                let binding = binding_name(name, &sink.name);
                let count = self.board.look(&binding, |progress| progress.refused_attempts).unwrap_or(0);
                sinks.insert(Refused::Binding(binding.clone()), (sink.family, sink.key.clone()));
                counts.insert(Refused::Binding(binding), count);
            }
        }
        for (probed, count) in self.probes.refused_attempts() {
            let sink = match &probed {
                Probed::Sink(family, name) => Some((*family, name.clone())),
                Probed::Test(name, _) => known
                    .connection_tests()
                    .get(name)
                    .and_then(|test| tested_sink(test))
                    .map(|(family, sink)| (family, (name.0.clone(), sink))),
            };
            let Some(sink) = sink else { continue };
            sinks.insert(Refused::Probe(probed.clone()), sink);
            counts.insert(Refused::Probe(probed), count);
        }
        for who in self.refusals.grown(counts) {
            for secret in world.secrets_named_by(&sinks[&who], &self.rules) {
                self.secrets.read_again(&secret);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Family;

    #[test]
    fn only_counts_that_have_grown_are_told() {
        let who = |name: &str| Refused::Probe(Probed::Sink(Family::Database, ("shop".into(), name.into())));
        let counts = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, count)| (who(name), *count)).collect();
        let mut refusals = Refusals::default();
        assert_eq!(refusals.grown(counts(&[("a", 0), ("b", 1)])), [who("b")]);
        assert_eq!(refusals.grown(counts(&[("a", 0), ("b", 1)])), []);
        assert_eq!(refusals.grown(counts(&[("a", 2), ("b", 0)])), [who("a")], "a count may begin again");
        assert_eq!(refusals.grown(counts(&[("b", 1)])), [who("b")]);
    }
}
