//! The messages of commits, from templates.

use kollect_model::{
    SpecError,
    batch::{Delta, InventoryId},
    crd::sinks::Git,
    difference::{AttributeDifference, differences, shortened},
    row::{Row, RowKey},
};

use crate::layout::path_owners::{OwnersByPath, PathOwner};

const SUBJECT: &str = "chore({cluster}/{namespace}/{name}): export {itemCount} items @ {checksumShort}";
const REMOVAL: &str = "chore({cluster}/{namespace}/{name}): remove the inventory";
const GIVING_UP: &str = "chore({cluster}/{namespace}/{name}): give up files of other inventories";
const BODY: &str = "{changes}";
/// The maximum number of rows that a message lists.
pub(super) const MAX_LINES: usize = 50;

/// The templates of commit messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommitMessages {
    subject: String,
    body: String,
    trailers: Vec<String>,
    pub(super) author: String,
    pub(super) email: String,
}

/// The values of the placeholders.
pub(super) struct MessageValues<'a> {
    pub(super) inventory: &'a InventoryId,
    pub(super) sink: &'a str,
    pub(super) generation: i64,
    pub(super) items: usize,
    pub(super) checksum: &'a str,
    pub(super) exported_at: &'a str,
    pub(super) path: &'a str,
    pub(super) changes: &'a str,
}

impl Default for CommitMessages {
    fn default() -> Self {
        Self {
            subject: SUBJECT.into(),
            body: BODY.into(),
            trailers: Vec::new(),
            author: "kollect".into(),
            email: "kollect@kollect.dev".into(),
        }
    }
}

impl CommitMessages {
    /// The templates of a spec, or everything that is wrong with them.
    pub(super) fn plan(git: Option<&Git>) -> Result<Self, Vec<SpecError>> {
        let default = Self::default();
        let Some(git) = git else { return Ok(default) };
        let given = |text: &Option<String>, default: String| match text {
            Some(text) if !text.trim().is_empty() => text.clone(),
            _ => default,
        };
        let author = git.author.clone().unwrap_or_default();
        let messages = Self {
            subject: given(&git.commit_message, default.subject),
            body: given(&git.commit_body, default.body),
            trailers: git.commit_trailers.clone(),
            author: given(&author.name, default.author),
            email: given(&author.email, default.email),
        };
        let mut errors = Vec::new();
        for (field, text) in
            [("spec.git.author.name", &messages.author), ("spec.git.author.email", &messages.email)]
        {
            // Git strips these characters from both ends: a name with no others would be empty.
            let is_stripped = |c: char| c.is_control() || c.is_whitespace() || ".,:;<>\"\\'".contains(c);
            if text.chars().any(|c| c.is_control() || matches!(c, '<' | '>')) || text.chars().all(is_stripped)
            {
                let problem =
                    "must be a name that Git can record: some letters, no < > and control characters";
                errors.push(SpecError::new(field, &text.as_str().into(), problem));
            }
        }
        for (index, trailer) in messages.trailers.iter().enumerate() {
            let key = trailer.split_once(':').map_or("", |(key, _)| key);
            if key.is_empty()
                || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                || trailer.contains('\n')
            {
                let field = format!("spec.git.commitTrailers[{index}]");
                let problem = "must be a line such as Signed-off-by: Kollect <kollect@example.com>";
                errors.push(SpecError::new(&field, &trailer.as_str().into(), problem));
            }
        }
        if errors.is_empty() { Ok(messages) } else { Err(errors) }
    }

    /// The message of the commit that removes an inventory.
    pub(super) fn for_removal() -> Self {
        Self { subject: REMOVAL.into(), body: String::new(), ..Self::default() }
    }

    /// The message of the commit that gives up files that belong to other inventories.
    pub(super) fn for_giving_up() -> Self {
        Self { subject: GIVING_UP.into(), ..Self::default() }
    }

    /// The message of a commit.
    pub(super) fn text(&self, values: &MessageValues<'_>) -> String {
        let line = |template: &str| {
            let filled = values.fill(template);
            filled.split(|c: char| c.is_control()).collect::<Vec<_>>().join(" ").trim().to_owned()
        };
        let mut paragraphs = vec![line(&self.subject), values.fill(&self.body).trim().to_owned()];
        paragraphs.push(self.trailers.iter().map(|trailer| line(trailer)).collect::<Vec<_>>().join("\n"));
        paragraphs.retain(|paragraph| !paragraph.is_empty());
        paragraphs.join("\n\n").replace('\0', " ") + "\n"
    }
}

impl<'a> MessageValues<'a> {
    /// The values for a commit that changes no row.
    pub(super) fn without_rows(inventory: &'a InventoryId, exported_at: &'a str) -> Self {
        Self {
            inventory,
            sink: "",
            generation: 0,
            items: 0,
            checksum: "",
            exported_at,
            path: "",
            changes: "",
        }
    }
}

impl MessageValues<'_> {
    /// The template with its placeholders filled in; other text in braces stays.
    fn fill(&self, template: &str) -> String {
        let mut filled = String::new();
        let mut rest = template;
        while let Some((literal, after)) = rest.split_once('{') {
            filled.push_str(literal);
            let placeholder =
                after.split_once('}').and_then(|(name, after)| Some((self.value(name)?, after)));
            rest = match placeholder {
                Some((value, after)) => {
                    filled.push_str(&value);
                    after
                }
                None => {
                    filled.push('{');
                    after
                }
            };
        }
        filled + rest
    }

    fn value(&self, placeholder: &str) -> Option<String> {
        let InventoryId { cluster, name, .. } = self.inventory;
        Some(match placeholder {
            "cluster" if cluster.is_empty() => "default".into(),
            "cluster" => cluster.clone(),
            "namespace" => self.inventory.stored_namespace().into(),
            "name" => name.clone(),
            "generation" | "exportGeneration" => self.generation.to_string(),
            "itemCount" => self.items.to_string(),
            "checksum" => self.checksum.into(),
            "checksumShort" => self.checksum.chars().take(12).collect(),
            "exportedAt" => self.exported_at.into(),
            "sink" => self.sink.into(),
            "path" => self.path.into(),
            "changes" => self.changes.into(),
            _ => return None,
        })
    }
}

/// What has changed, one row per line. `before` returns the attributes that a row had, `name` the name of a row
/// that was removed.
pub(super) fn changes(
    delta: &Delta,
    before: impl Fn(&RowKey) -> Option<String>,
    name: impl Fn(&RowKey) -> Option<String>,
) -> String {
    enum MessageSubject<'a> {
        Added(&'a Row),
        Changed(&'a Row, Option<&'a Row>),
        Removed(String),
    }
    let mut rows: Vec<(&RowKey, MessageSubject<'_>)> = Vec::new();
    rows.extend(delta.added.iter().map(|row| (&row.key, MessageSubject::Added(row))));
    rows.extend(delta.changed.iter().map(|changed| {
        (&changed.after.key, MessageSubject::Changed(&changed.after, changed.before.as_deref()))
    }));
    rows.extend(delta.removed.iter().map(|removed| {
        let known = removed.before.as_ref().map(|row| row.name.to_string());
        let name = known.or_else(|| name(&removed.key)).unwrap_or_else(|| removed.key.uid.to_string());
        (&removed.key, MessageSubject::Removed(name))
    }));
    let sort_key = |key: &RowKey, change: &MessageSubject<'_>| {
        let name = match change {
            MessageSubject::Added(row) | MessageSubject::Changed(row, _) => &*row.name,
            MessageSubject::Removed(name) => name,
        };
        (key.namespace.to_string(), key.kind.to_string(), name.to_owned(), key.uid.to_string())
    };
    rows.sort_by_cached_key(|(key, change)| sort_key(key, change));
    let mut lines = Vec::new();
    for (key, change) in rows.iter().take(MAX_LINES) {
        let (namespace, kind, name, _) = sort_key(key, change);
        let slash = if namespace.is_empty() { "" } else { "/" };
        let object = format!("{namespace}{slash}{kind}/{name}");
        lines.push(match change {
            MessageSubject::Added(_) => format!("+ {object}"),
            MessageSubject::Removed(_) => format!("- {object}"),
            MessageSubject::Changed(after, known) => {
                let known = known.map(|row| row.attributes.to_string()).or_else(|| before(key));
                let details = known.map(|known| differences(Some(&known), after.attributes.get()));
                let details: Vec<String> = details.unwrap_or_default().iter().map(detail).collect();
                if details.is_empty() {
                    format!("~ {object}")
                } else {
                    format!("~ {object}: {}", details.join(", "))
                }
            }
        });
    }
    with_count(lines, rows.len())
}

/// Files that are given up, and their owners.
pub(super) fn given_up(files: &OwnersByPath) -> String {
    let line = |(path, owners): (&String, &Vec<PathOwner>)| {
        format!("{path}: {}", owners.first().map_or_else(String::new, PathOwner::described))
    };
    with_count(files.iter().take(MAX_LINES).map(line).collect(), files.len())
}

/// The lines, and a line with the number of those that were left out.
fn with_count(mut lines: Vec<String>, total: usize) -> String {
    if let Some(more) = total.checked_sub(MAX_LINES).filter(|more| *more > 0) {
        lines.push(format!("… and {more} more"));
    }
    lines.join("\n")
}

fn detail(AttributeDifference { name, before, after }: &AttributeDifference) -> String {
    let show = |json: &Option<String>| json.as_deref().map_or("-".into(), |json| shortened(&unquoted(json)));
    format!("{name} {} → {}", show(before), show(after))
}

/// Strings without quotation marks, if they are one line and not empty.
fn unquoted(json: &str) -> String {
    match serde_json::from_str::<String>(json) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text,
        _ => json.to_owned(),
    }
}

#[cfg(test)]
mod tests;
