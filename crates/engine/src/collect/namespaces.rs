//! Watches the metadata of namespaces, once for all kinds.

use std::{collections::BTreeSet, sync::Arc};

use futures::StreamExt;
use kollect_model::crd::shapes::Gvk;
use tokio::{sync::watch::Receiver, time};

use super::{CollectContext, panic_of};
use crate::{
    coverage::{WatchKey, WatchState},
    select::{Namespaces, same_metadata},
    tasks::{Task, TaskKind, TaskName},
    watch::{BlindReason, Blindness, Event, Metadata, Query},
};

/// The kind Namespace.
pub(super) fn kind() -> Gvk {
    Gvk { group: String::new(), version: "v1".into(), kind: "Namespace".into() }
}

/// Starts the task that publishes the known namespaces.
pub(super) fn start(context: &Arc<CollectContext>) -> Task {
    let (own, panicked) = (context.clone(), context.clone());
    let name = TaskName::of_kind(TaskKind::Watch, &kind(), None);
    context.tasks.restarted(
        name,
        move || follow(own.clone()),
        move |pause| {
            let watched = WatchKey { gvk: kind(), namespace: None, field_selector: None };
            panicked.report_blind(&watched, panic_of(&kind()));
            if panicked.namespaces.borrow().is_none() {
                publish_named(&panicked);
            }
            time::sleep(pause)
        },
    )
}

/// Publishes the known namespaces. Without permission to list them, those that targets name are assumed to exist. A
/// complete list stays in use while namespaces cannot be listed again.
async fn follow(context: Arc<CollectContext>) {
    let query = Query { metadata_only: true, follow: context.settings.follow, ..Query::all(kind()) };
    let watched = WatchKey { gvk: query.gvk.clone(), namespace: None, field_selector: None };
    let mut names = context.named.subscribe();
    let mut was_reported = false;
    loop {
        if context.source.permits(&query).await {
            was_reported = watch(&context, &query, &watched, &mut names).await;
        } else if !std::mem::replace(&mut was_reported, true) {
            let message = "list namespaces in the whole cluster: forbidden; grant the verb list on it".into();
            context.report_blind(&watched, Blindness { reason: BlindReason::Forbidden, message });
        }
        if !context.namespaces.borrow().as_ref().is_some_and(|known| known.complete) {
            publish_named(&context);
        }
        if !context.settings.follow {
            return;
        }
        tokio::select! {
            // Either branch leads to the next round.
            biased;
            () = time::sleep(context.settings.review) => {}
            Ok(()) = names.changed() => {}
        }
    }
}

fn publish_named(context: &CollectContext) {
    let within = context.settings.within.iter().flatten();
    let names: Vec<Arc<str>> = within.chain(context.named.borrow().iter()).cloned().collect();
    let known = names.into_iter().map(|name| {
        let metadata = Metadata { name: name.clone(), ..Metadata::default() };
        (name, Arc::new(metadata))
    });
    let namespaces = Namespaces { known: known.collect(), complete: false };
    context.namespaces.send_replace(Some(Arc::new(namespaces)));
}

/// Watches the namespaces until the stream ends. Returns whether blindness was reported.
async fn watch(
    context: &CollectContext,
    query: &Query,
    watched: &WatchKey,
    names: &mut Receiver<BTreeSet<Arc<str>>>,
) -> bool {
    let mut was_reported = false;
    let mut events = context.source.watch(query.clone());
    // A list is published as a whole: with a part of it, the other namespaces would look deleted.
    let mut listing: Option<Namespaces> = None;
    loop {
        let event = tokio::select! {
            biased;
            Ok(()) = names.changed() => {
                // Until namespaces have been listed, only those that targets name are known.
                if context.namespaces.borrow().as_ref().is_some_and(|known| !known.complete) {
                    publish_named(context);
                }
                continue;
            }
            event = events.next() => event,
        };
        let Some(event) = event else { return was_reported };
        match event {
            Event::Listing { total } => {
                listing = Some(Namespaces::default());
                context.coverage.set(watched, WatchState::Listing { seen: 0, total });
            }
            Event::Apply(object) => {
                context.coverage.count(watched, 1);
                let metadata = Arc::new(object.metadata);
                let known = context.namespaces.borrow().clone().unwrap_or_default();
                let before = known.known.get(&metadata.name).map(|known| &**known);
                // Most changes of a namespace affect no selection and no expression.
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
                context.coverage.set(watched, WatchState::synced(version));
            }
            Event::Progress { version } => context.coverage.set(watched, WatchState::synced(version)),
            Event::Resumed => context.coverage.set(watched, WatchState::synced(0)),
            Event::Blind(blindness) => {
                context.report_blind(watched, blindness);
                was_reported = true;
                if context.namespaces.borrow().is_none() {
                    publish_named(context);
                }
            }
        }
    }
}

/// Changes the running list, or the published namespaces if no list is running.
fn change(context: &CollectContext, listing: &mut Option<Namespaces>, change: impl FnOnce(&mut Namespaces)) {
    match listing {
        Some(namespaces) => change(namespaces),
        None => context.namespaces.send_modify(|known| {
            change(Arc::make_mut(known.get_or_insert_default()));
        }),
    }
}
