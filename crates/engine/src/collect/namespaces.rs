//! What is known about namespaces: one watch of their metadata, which all kinds share.

use std::{collections::BTreeSet, sync::Arc};

use futures::StreamExt;
use kollect_model::crd::shapes::Gvk;
use tokio::{sync::watch::Receiver, time};

use super::{Context, panic_of};
use crate::{
    coverage::{Place, State},
    select::{Namespaces, same_metadata},
    tasks::{Task, TaskKind, TaskName},
    watch::{BlindReason, Blindness, Event, Metadata, Query},
};

/// The kind itself.
pub(super) fn kind() -> Gvk {
    Gvk { group: String::new(), version: "v1".into(), kind: "Namespace".into() }
}

/// Starts to publish what is known.
pub(super) fn start(context: &Arc<Context>) -> Task {
    let (own, panicked) = (context.clone(), context.clone());
    let name = TaskName::of_kind(TaskKind::Watch, &kind(), None);
    context.tasks.restarted(
        name,
        move || follow(own.clone()),
        move |pause| {
            let place = Place { gvk: kind(), namespace: None, field_selector: None };
            panicked.tell_blind(&place, panic_of(&kind()));
            if panicked.namespaces.borrow().is_none() {
                publish_named(&panicked);
            }
            time::sleep(pause)
        },
    )
}

/// Publishes what is known, for ever. Without permission to list namespaces those that targets name
/// are taken to exist; once seen, they are remembered for as long as they cannot be seen again.
async fn follow(context: Arc<Context>) {
    let query = Query { metadata_only: true, follow: context.settings.follow, ..Query::all(kind()) };
    let place = Place { gvk: query.gvk.clone(), namespace: None, field_selector: None };
    let mut names = context.named.subscribe();
    let mut told = false;
    loop {
        if context.source.permits(&query).await {
            told = watch(&context, &query, &place, &mut names).await;
        } else if !std::mem::replace(&mut told, true) {
            let message = "list namespaces in the whole cluster: forbidden; grant the verb list on it".into();
            context.tell_blind(&place, Blindness { reason: BlindReason::Forbidden, message });
        }
        if !context.namespaces.borrow().as_ref().is_some_and(|known| known.complete) {
            publish_named(&context);
        }
        if !context.settings.follow {
            return;
        }
        tokio::select! {
            // Both lead to the next round.
            biased;
            () = time::sleep(context.settings.review) => {}
            Ok(()) = names.changed() => {}
        }
    }
}

fn publish_named(context: &Context) {
    let within = context.settings.within.iter().flatten();
    let names: Vec<Arc<str>> = within.chain(context.named.borrow().iter()).cloned().collect();
    let known = names.into_iter().map(|name| {
        let metadata = Metadata { name: name.clone(), ..Metadata::default() };
        (name, Arc::new(metadata))
    });
    let namespaces = Namespaces { known: known.collect(), complete: false };
    context.namespaces.send_replace(Some(Arc::new(namespaces)));
}

/// Follows the namespaces until they cannot be seen any more, and says whether that was told.
async fn watch(
    context: &Context,
    query: &Query,
    place: &Place,
    names: &mut Receiver<BTreeSet<Arc<str>>>,
) -> bool {
    let mut told = false;
    let mut events = context.source.watch(query.clone());
    // A list is published as a whole: half of it would look like deleted namespaces.
    let mut listing: Option<Namespaces> = None;
    loop {
        let event = tokio::select! {
            biased;
            Ok(()) = names.changed() => {
                // Until they have been listed, those that targets name are all that is known.
                if context.namespaces.borrow().as_ref().is_some_and(|known| !known.complete) {
                    publish_named(context);
                }
                continue;
            }
            event = events.next() => event,
        };
        let Some(event) = event else { return told };
        match event {
            Event::Listing { total } => {
                listing = Some(Namespaces::default());
                context.coverage.set(place, State::Listing { seen: 0, total });
            }
            Event::Apply(object) => {
                context.coverage.count(place, 1);
                let metadata = Arc::new(object.metadata);
                let known = context.namespaces.borrow().clone().unwrap_or_default();
                let before = known.known.get(&metadata.name).map(|known| &**known);
                // Most changes of namespaces concern no selection.
                if listing.is_some() || !same_metadata(before, Some(&metadata)) {
                    change(context, &mut listing, |namespaces| {
                        namespaces.known.insert(metadata.name.clone(), metadata.clone());
                    });
                }
            }
            Event::Delete(metadata) => change(context, &mut listing, |namespaces| {
                namespaces.known.remove(&metadata.name);
            }),
            Event::Synced { version } => {
                if let Some(listed) = listing.take() {
                    let namespaces = Namespaces { complete: true, ..listed };
                    context.namespaces.send_replace(Some(Arc::new(namespaces)));
                }
                context.coverage.set(place, State::synced(version));
            }
            Event::Progress { version } => context.coverage.set(place, State::synced(version)),
            Event::Resumed => context.coverage.set(place, State::synced(0)),
            Event::Blind(blindness) => {
                context.tell_blind(place, blindness);
                told = true;
                if context.namespaces.borrow().is_none() {
                    publish_named(context);
                }
            }
        }
    }
}

/// Changes the list that is running, or what is known.
fn change(context: &Context, listing: &mut Option<Namespaces>, change: impl FnOnce(&mut Namespaces)) {
    match listing {
        Some(namespaces) => change(namespaces),
        None => context.namespaces.send_modify(|known| {
            change(Arc::make_mut(known.get_or_insert_default()));
        }),
    }
}
