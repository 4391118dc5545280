//! Rows as a target of Deployments makes them, written directly into the store.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use kollect_engine::store::{KindRows, RowOrigin, StoreReader, StoreWriter, Visibility, store};
use kollect_model::{
    crd::shapes::Gvk,
    row::{Row, RowDigest, RowKey, TargetId},
    schema::{AttributeSchema, AttributeType, Schema, TargetSchema},
};
use serde_json::value::RawValue;

const NAMESPACES: usize = 100;

/// A store with one kind, and what is in it.
pub(crate) struct Rows {
    pub(crate) reader: StoreReader,
    kind: KindRows,
    texts: Texts,
    /// The current edition of each row; `None` if the row does not exist.
    editions: Mutex<Vec<Option<u64>>>,
    // Not used after `pending`; kept alive as long as the rows.
    _writer: StoreWriter,
}

/// Texts that rows share, as in a collector.
struct Texts {
    target: TargetId,
    group: Arc<str>,
    kind: Arc<str>,
    version: Arc<str>,
    namespaces: Vec<Arc<str>>,
}

/// The target of all rows.
pub(crate) fn target() -> TargetId {
    TargetId { namespace: Some("team".into()), name: "web".into() }
}

/// What the target declares about its rows.
pub(crate) fn schema() -> Schema {
    use AttributeType::{Int, List, Map};
    let declared = [
        ("edition", None),
        ("image", None),
        ("images", Some(List)),
        ("labels", Some(Map)),
        ("owner", None),
        ("ports", Some(List)),
        ("replicas", Some(Int)),
        ("strategy", None),
    ];
    let attributes =
        declared.map(|(name, type_)| AttributeSchema { name: name.into(), type_, optional: false });
    let declared = TargetSchema { profile: "team/web".into(), attributes: attributes.into() };
    Schema { targets: [(target(), declared)].into() }
}

/// The UID of an object.
pub(crate) fn uid(index: usize) -> String {
    format!("00000000-0000-4000-8000-{index:012}")
}

impl Rows {
    /// A store whose rows are still pending.
    pub(crate) fn pending() -> Self {
        let (writer, reader) = store();
        let gvk = Gvk { group: "apps".into(), version: "v1".into(), kind: "Deployment".into() };
        let texts = Texts {
            target: target(),
            group: "apps".into(),
            kind: "Deployment".into(),
            version: "v1".into(),
            namespaces: (0..NAMESPACES).map(|index| format!("shop-{index:02}").into()).collect(),
        };
        let kind = writer.rows(&texts.target, &gvk);
        Self { reader, kind, texts, editions: Mutex::default(), _writer: writer }
    }

    /// A store with `count` rows, none of them pending.
    pub(crate) fn filled(count: usize) -> Result<Self> {
        let rows = Self::pending();
        rows.fill(&vec![Some(0); count])?;
        Ok(rows)
    }

    /// Adds rows, and marks the list as complete.
    pub(crate) fn fill(&self, editions: &[Option<u64>]) -> Result<()> {
        for (index, edition) in editions.iter().enumerate() {
            if let Some(edition) = edition {
                self.kind.upsert(self.row(index, *edition)?, RowOrigin::default(), None);
            }
        }
        *self.editions() = editions.to_vec();
        self.kind.set_visibility(Visibility::Everything);
        Ok(())
    }

    /// The argument with which [`Self::fill`] makes the same rows again.
    pub(crate) fn contents(&self) -> Vec<Option<u64>> {
        self.editions().clone()
    }

    /// Changes a row. Returns its digest.
    pub(crate) fn change(&self, index: usize, edition: u64) -> Result<RowDigest> {
        let row = self.row(index, edition)?;
        let digest = row.digest;
        anyhow::ensure!(self.kind.upsert(row, RowOrigin::default(), None), "row {index} was not changed");
        if let Some(known) = self.editions().get_mut(index) {
            *known = Some(edition);
        }
        Ok(digest)
    }

    /// Changes an object but not its row, as an update of its status does.
    pub(crate) fn touch(&self, index: usize, version: u64) -> Result<()> {
        let edition = self.editions().get(index).copied().flatten().unwrap_or_default();
        let changed =
            self.kind.upsert(self.row(index, edition)?, RowOrigin { version, ..RowOrigin::default() }, None);
        anyhow::ensure!(!changed, "row {index} was changed");
        Ok(())
    }

    /// Removes an object.
    pub(crate) fn remove(&self, index: usize) -> Result<()> {
        anyhow::ensure!(self.kind.remove(&uid(index)), "there is no row {index}");
        if let Some(known) = self.editions().get_mut(index) {
            *known = None;
        }
        Ok(())
    }

    /// All rows of an edition have the same length.
    fn row(&self, index: usize, edition: u64) -> Result<Row> {
        let Texts { target, group, kind, version, namespaces } = &self.texts;
        let key = RowKey {
            target: target.clone(),
            group: group.clone(),
            kind: kind.clone(),
            namespace: namespaces[index % NAMESPACES].clone(),
            uid: uid(index).into(),
        };
        let (team, tier) = (index % 40, ["web", "backend", "database", "batch"][index % 4]);
        let image = format!("registry.example.com/shop/main:1.{}.{}", index % 20, index % 9);
        let attributes = format!(
            r#"{{"edition":"{edition:010}","image":"{image}","images":["{image}","{image}-proxy"],"labels":{{"app.kubernetes.io/name":"web-{index:06}","app.kubernetes.io/part-of":"shop","team":"team-{team}","tier":"{tier}"}},"owner":"team-{team}@example.com","ports":[8080,9090],"replicas":{},"strategy":"RollingUpdate"}}"#,
            index % 7
        );
        let attributes = RawValue::from_string(attributes)?;
        Ok(Row::new(key, version.clone(), format!("web-{index:06}").into(), attributes.into()))
    }

    fn editions(&self) -> std::sync::MutexGuard<'_, Vec<Option<u64>>> {
        self.editions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
