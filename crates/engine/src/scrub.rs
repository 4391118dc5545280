//! Protects secrets: removes fields of an object before an expression reads it, and redacts credentials.
//!
//! Redaction runs twice: on what was read of the object, so that no expression can copy a credential to another name, and on
//! attributes that an expression has made or whose own name means a credential. It judges single values, never structures: by
//! the name of the value (`names`), by what is around it (here), and by its text (`texts`). A redacted value is
//! [`Json::Redacted`]; a text with a credential in it stays a text.

mod names;
mod places;
mod texts;
mod values;

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use kollect_model::crd::shapes::Gvk;

pub use self::places::{RedactedPlace, RedactionCause};
pub(crate) use self::{names::CredentialNames, places::Redactions, texts::MASK};
use self::{
    names::{NameMeaning, has_last_word, is_plural},
    texts::{CommandLine, MaskedText, TextForm},
    values::{is_credential, is_identifier, is_object_name, may_be_object_name, names_a_key},
};
use crate::json::{Json, JsonMap, Projection};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Keys of a map that says where a credential is.
pub(crate) const REFERENCE_KEYS: &[&str] = &[
    "apiVersion",
    "defaultMode",
    "enabled",
    "group",
    "items",
    "key",
    "kind",
    "mode",
    "name",
    "namespace",
    "optional",
    "path",
    "property",
    "secretKey",
    "secretName",
    "version",
];

/// Last words of keys that describe a credential: a text there is none, also below the name of one. Without the `s` of a plural.
pub(crate) const DESCRIPTIVE_WORDS: &[&str] = &[
    "access",
    "account",
    "algorithm",
    "aud",
    "audience",
    "database",
    "description",
    "dir",
    "email",
    "encoding",
    "endpoint",
    "expiry",
    "file",
    "format",
    "group",
    "hashe",
    "header",
    "host",
    "id",
    "issuer",
    "kind",
    "mode",
    "name",
    "namespace",
    "parameter",
    "path",
    "policy",
    "port",
    "prefix",
    "project",
    "provider",
    "query",
    "realm",
    "region",
    "role",
    "scope",
    "second",
    "server",
    "size",
    "source",
    "stage",
    "tenant",
    "ttl",
    "type",
    "uri",
    "url",
    "usage",
    "user",
    "username",
    "version",
];

/// The same in a map of several credentials: its keys may be those that they belong to.
pub(crate) const DESCRIPTIVE_KEYS: &[&str] = &[
    "algorithm",
    "apiVersion",
    "audience",
    "encoding",
    "expirationSeconds",
    "kind",
    "name",
    "namespace",
    "rotationPolicy",
    "size",
    "type",
];

/// Keys that hold a credential below `auth`.
pub(crate) const AUTH_KEYS: &[&str] = &["basic", "bearer", "key", "value"];

/// Parts of objects of these kinds that hold no values: schemas, and ciphertexts.
pub(crate) const NOT_JUDGED: &[(&str, &[&str])] = &[
    (
        "openAPIV3Schema",
        &["CustomResourceDefinition", "CompositeResourceDefinition", "ConstraintTemplate", "ClusterClass"],
    ),
    ("encryptedData", &["SealedSecret"]),
];

/// Fields of `spec` that are published, although their names say otherwise: group, kind and fields.
pub(crate) const PUBLISHED: &[(&str, &str, &[&str])] =
    &[("acme.cert-manager.io", "Challenge", &["key", "token"])];

/// Keys of the value of a pair, and those beside it that say what it is.
pub(crate) const PAIRS: &[(&str, &[&str])] = &[
    ("value", &["name", "key"]),
    ("default", &["name", "key"]),
    ("string", &["name"]),
    ("array", &["name"]),
    ("headerValue", &["headerName"]),
    ("content", &["path"]),
    ("values", &["key"]),
];

/// Whether the kind keeps secrets in `data` and `stringData`.
pub(crate) fn is_secret(gvk: &Gvk) -> bool {
    gvk.group.is_empty() && gvk.kind == "Secret"
}

/// Removes what no expression may see: kubectl's copy of the whole object, which repeats everything
/// that is removed or redacted elsewhere, and the data of a Secret unless it was opted in.
pub(crate) fn remove_hidden_fields(object: &mut JsonMap<'_>, without_data: bool) {
    if without_data {
        object.remove("data");
        object.remove("stringData");
    }
    if let Some(Json::Map(metadata)) = object.get_mut("metadata")
        && let Some(Json::Map(annotations)) = metadata.get_mut("annotations")
    {
        annotations.remove(LAST_APPLIED);
    }
}

/// Adds fields that redaction needs, such as the name beside the value of a pair. Without them, redaction would depend on which other
/// fields a profile reads.
pub(crate) fn add_redaction_fields(projection: &mut Projection) {
    if projection.is_everything() {
        return;
    }
    for (value, names) in PAIRS {
        if projection.has_key(value) {
            names.iter().for_each(|name| projection.key(name).take_all());
        }
    }
    projection.children_mut().for_each(add_redaction_fields);
}

/// The words that mean a credential, whatever a text looks like.
#[cfg(test)]
pub(crate) fn credential_words() -> impl Iterator<Item = &'static str> {
    names::CREDENTIAL_WORDS.iter().filter(|known| known.meaning.is_credential()).map(|known| known.word)
}

/// What redaction must know of the keys of a map, also of those that were not read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MapKeys(u8);

impl MapKeys {
    /// A key that is not in [`REFERENCE_KEYS`].
    const OTHER: u8 = 1;
    /// `name` or `secretName`.
    const NAME: u8 = 2;
    /// A key that ends in `Ref`.
    const REFERENCE: u8 = 4;
    /// `key`.
    const KEY: u8 = 8;
    /// The name of a Secret: `secretName`, `existingSecret`.
    const SECRET_NAME: u8 = 16;
    /// `secret`, with a text of the form of an object's name.
    const SECRET: u8 = 32;
    /// `secret`, with the name of an object.
    const SECRET_OBJECT: u8 = 64;

    /// Adds a key that is not read, whose value begins here as JSON.
    pub(crate) fn add_skipped(&mut self, key: &str, value: &str) {
        let text = value.strip_prefix('"').map(|text| text.strip_suffix('"').unwrap_or(text));
        self.add(key, text, text.is_some() || value.starts_with(['{', '[']));
    }

    /// Adds a key. A value that can hold no text does not count.
    fn add(&mut self, key: &str, text: Option<&str>, holds_text: bool) {
        self.0 |= match key {
            _ if !holds_text => 0,
            "name" => Self::NAME,
            "secret" => match text {
                Some(text) if is_object_name(text) => Self::SECRET | Self::SECRET_OBJECT,
                Some(text) if may_be_object_name(text) => Self::SECRET,
                _ => Self::OTHER,
            },
            "key" => Self::KEY,
            "secretName" | "secretname" => Self::NAME | Self::SECRET_NAME,
            key if REFERENCE_KEYS.contains(&key) => 0,
            key if key.ends_with("Ref") => Self::OTHER | Self::REFERENCE,
            key if key.ends_with("ecretName") || key == "existingSecret" => Self::OTHER | Self::SECRET_NAME,
            _ => Self::OTHER,
        };
    }

    /// All keys of a map, read or not.
    fn of(map: &JsonMap<'_>) -> Self {
        let mut all = map.skipped;
        map.iter().for_each(|(key, value)| all.add(key, value.as_str(), value.holds_text()));
        all
    }

    fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }

    /// Whether the map says where a credential is, and holds none.
    fn refer(self, own_key: &str) -> bool {
        let by_own_key = || own_key.ends_with("Ref") || own_key.ends_with("Selector");
        // `password: {secret: shop-db, key: password}`
        let by_secret = || self.has(Self::SECRET_OBJECT) || self.has(Self::SECRET) && self.has(Self::KEY);
        !self.has(Self::OTHER)
            && if self.has(Self::SECRET) { by_secret() } else { self.has(Self::NAME) || by_own_key() }
    }
}

/// What is around a value.
#[derive(Clone, Copy)]
struct Surroundings<'s> {
    below: Below,
    /// The keys may be those that credentials belong to: `tokens: {user: …}`.
    is_several: bool,
    form: TextForm,
    /// The kind of the object; empty if it is none.
    kind: &'s str,
    /// The expression that has made the value. Keys that are not written in it come from the object, and say nothing.
    expression: Option<&'s str>,
}

/// The strongest name above a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Below {
    Nothing,
    Auth,
    Credential,
    Added,
}

impl Surroundings<'_> {
    const TOP: Self = Surroundings {
        below: Below::Nothing,
        is_several: false,
        form: TextForm::Value,
        kind: "",
        expression: None,
    };

    /// What is around the values in a structure with a name.
    fn inside(self, name: &str, meaning: NameMeaning) -> Self {
        let below = match meaning {
            NameMeaning::Credential { below: true, .. } => Below::Credential,
            NameMeaning::Auth => Below::Auth,
            NameMeaning::Added => Below::Added,
            _ => Below::Nothing,
        };
        let is_several = below == Below::Credential && is_plural(name) && !name.ends_with("redentials");
        Self { below: self.below.max(below), is_several, ..self }
    }

    /// Whether a text is a credential because of where it is.
    fn hides(self, key: &str, own_key: &str) -> bool {
        match self.below {
            Below::Nothing => key == "key" && own_key == "tls",
            Below::Auth => AUTH_KEYS.contains(&key),
            Below::Credential if self.is_several => !DESCRIPTIVE_KEYS.contains(&key),
            Below::Credential => !describes(key),
            Below::Added => true,
        }
    }
}

/// Redacts credentials.
#[derive(Clone, Debug)]
pub(crate) struct Scrubber {
    names: CredentialNames,
    /// Whether texts are searched for credentials.
    texts: bool,
}

impl Default for Scrubber {
    fn default() -> Self {
        Self { names: CredentialNames::default(), texts: true }
    }
}

impl Scrubber {
    pub(crate) fn new(names: CredentialNames, texts: bool) -> Self {
        Self { names, texts }
    }

    /// What the name of an attribute means.
    pub(crate) fn meaning(&self, name: &str) -> NameMeaning {
        self.names.meaning(name)
    }

    /// Redacts an object of a kind, or what was read of it.
    pub(crate) fn scrub_object(&self, object: &mut JsonMap<'_>, gvk: &Gvk, found: &mut Redactions) {
        let has_files = gvk.group.is_empty() && gvk.kind == "ConfigMap";
        let published = take_published(object, gvk);
        for index in 0..object.len() {
            let (key, value) = object.entry_at(index);
            let form = if has_files && key == "data" { TextForm::File } else { TextForm::Value };
            let around = Surroundings { form, kind: &gvk.kind, ..Surroundings::TOP };
            self.entry(key, value, self.names.meaning(key), around, found);
        }
        if let Some(Json::Map(spec)) = object.get_mut("spec") {
            published.into_iter().for_each(|(key, value)| spec.insert(key, value));
        }
    }

    /// Redacts a map that is no object, such as a Helm release; places in it begin with `what` it is.
    pub(crate) fn scrub(&self, map: &mut JsonMap<'_>, what: &str, found: &mut Redactions) {
        found.enter(what);
        self.map(map, "", Surroundings::TOP, found);
        found.leave();
    }

    /// Redacts the value of an attribute, whose name may mean a credential. `expression`: what has made it.
    pub(crate) fn scrub_attribute(
        &self,
        name: &str,
        value: &mut Json<'_>,
        expression: Option<&str>,
        found: &mut Redactions,
    ) {
        found.enter("attributes");
        self.entry(name, value, self.meaning(name), Surroundings { expression, ..Surroundings::TOP }, found);
        found.leave();
    }

    /// Judges the value of a key that means this, in a map with these surroundings.
    fn entry(
        &self,
        key: &str,
        value: &mut Json<'_>,
        meaning: NameMeaning,
        around: Surroundings<'_>,
        found: &mut Redactions,
    ) {
        match value {
            Json::Null | Json::Bool(_) | Json::Redacted => {}
            Json::String(_) | Json::Number(_) => {
                let named = NamedAs { name: key, meaning, cause: RedactionCause::Name };
                self.scalar(key, value, named.cause_of(value), around.form, found);
            }
            Json::Map(_) | Json::List(_) => {
                found.enter(key);
                self.structure(key, value, meaning, around, found);
                found.leave();
            }
        }
    }

    fn structure(
        &self,
        key: &str,
        value: &mut Json<'_>,
        meaning: NameMeaning,
        around: Surroundings<'_>,
        found: &mut Redactions,
    ) {
        if NOT_JUDGED.iter().any(|(part, kinds)| *part == key && kinds.contains(&around.kind)) {
            return;
        }
        let around = around.inside(key, meaning);
        match value {
            Json::Map(map) => self.map(map, key, around, found),
            Json::List(items) => {
                self.list(items, key, meaning, Surroundings { is_several: false, ..around }, found);
            }
            _ => {}
        }
    }

    fn map(&self, map: &mut JsonMap<'_>, own_key: &str, around: Surroundings<'_>, found: &mut Redactions) {
        // Which keys a map has matters only below such a name, and beside the name of a credential.
        let mut keys = None;
        let may_refer = around.below != Below::Nothing || own_key.ends_with("Ref");
        let is_reference =
            may_refer && around.below != Below::Added && keys.insert(MapKeys::of(map)).refer(own_key);
        for index in 0..map.len() {
            let (key, value) = (map.key_at(index), map.value_at(index));
            let named = self.name_of_pair(map, key).unwrap_or_else(|| self.named(key, around));
            if matches!(value, Json::Map(_) | Json::List(_)) {
                let below = if is_reference && key == "items" { Below::Nothing } else { around.below };
                let meaning = named.meaning;
                let (key, value) = map.entry_at(index);
                self.entry(key, value, meaning, Surroundings { below, ..around }, found);
                continue;
            }
            let is_credential = named.meaning == NameMeaning::Added || around.below == Below::Added;
            let is_plain = named.meaning == NameMeaning::Plain && !around.hides(key, own_key);
            let cause = if is_plain || is_reference && !is_credential {
                None
            } else {
                let keys = *keys.get_or_insert_with(|| MapKeys::of(map));
                judge(key, value, named, own_key, keys, around)
            };
            let (key, value) = map.entry_at(index);
            self.scalar(key, value, cause, around.form, found);
        }
    }

    /// What a key says about its value.
    fn named<'k>(&self, key: &'k str, around: Surroundings<'_>) -> NamedAs<'k> {
        // The name of a file says what is in it: `password.txt`.
        let name = match (around.form, key.split_once('.')) {
            (TextForm::File, Some((stem, "txt" | "csv"))) => stem,
            _ => key,
        };
        let is_written = around.expression.is_none_or(|expression| expression.contains(key));
        let meaning = if is_written { self.names.meaning(name) } else { NameMeaning::Plain };
        NamedAs { name, meaning, cause: RedactionCause::Name }
    }

    /// The name of a pair whose value has this key: in an environment variable, `name` holds the word and `value` the credential.
    fn name_of_pair<'m>(&self, map: &'m JsonMap<'_>, key: &str) -> Option<NamedAs<'m>> {
        let (_, names) = PAIRS.iter().find(|(value, _)| *value == key)?;
        let mut all = names.iter().filter_map(|name| {
            let name = map.get(name)?.as_str()?;
            let (name, least) = match key {
                // The path of a file.
                "content" => {
                    let file = name.rsplit('/').next().unwrap_or_default();
                    (file.split_once('.').map_or(file, |(stem, _)| stem), NameMeaning::Plain)
                }
                // A condition of Istio: `request.headers[x-api-key]`.
                "values" => (name.strip_suffix(']')?.rsplit_once('[')?.1, NameMeaning::Plain),
                "headerValue" => (name, NameMeaning::Key),
                _ => (name, NameMeaning::Plain),
            };
            let meaning = match self.names.meaning(name) {
                NameMeaning::Plain => least,
                meaning => meaning,
            };
            Some(NamedAs { name, meaning, cause: RedactionCause::Pair })
        });
        let first = all.next()?;
        let is_credential = |named: &NamedAs<'m>| named.meaning.is_credential();
        Some(if is_credential(&first) { first } else { all.find(is_credential).unwrap_or(first) })
    }

    fn list(
        &self,
        items: &mut [Json<'_>],
        key: &str,
        meaning: NameMeaning,
        around: Surroundings<'_>,
        found: &mut Redactions,
    ) {
        let own = NamedAs { name: key, meaning, cause: RedactionCause::Name };
        let named = match around.below {
            _ if meaning.is_credential() => own,
            Below::Nothing | Below::Auth => own,
            _ if !around.hides(key, "") => own,
            below => NamedAs { meaning: meaning_below(below), cause: RedactionCause::Below, ..own },
        };
        let mut command = CommandLine::default();
        for (index, item) in items.iter_mut().enumerate() {
            found.enter_item(index);
            match item {
                Json::String(text) if self.texts && !named.meaning.is_credential() => {
                    match command.next(text, &self.names) {
                        None => self.scalar("", item, named.cause_of(item), around.form, found),
                        Some(0) => {
                            *item = Json::Redacted;
                            found.redacted("", RedactionCause::Text);
                        }
                        Some(kept) => {
                            *text = Cow::Owned(format!("{}{MASK}", text.get(..kept).unwrap_or_default()));
                            found.masked("");
                        }
                    }
                }
                Json::String(_) | Json::Number(_) => {
                    self.scalar("", item, named.cause_of(item), around.form, found);
                }
                Json::Map(map) => self.map(map, key, around, found),
                Json::List(items) => self.list(items, key, meaning, around, found),
                Json::Null | Json::Bool(_) | Json::Redacted => {}
            }
            found.leave();
        }
    }

    /// Redacts a value for a cause, or judges its text if there is none.
    fn scalar(
        &self,
        key: &str,
        value: &mut Json<'_>,
        cause: Option<RedactionCause>,
        form: TextForm,
        found: &mut Redactions,
    ) {
        if let Some(cause) = cause {
            *value = Json::Redacted;
            found.redacted(key, cause);
            return;
        }
        let Json::String(text) = value else { return };
        if !self.texts {
            return;
        }
        match texts::mask(text, form, &self.names) {
            MaskedText::Unchanged => {}
            MaskedText::Whole => {
                *value = Json::Redacted;
                found.redacted(key, RedactionCause::Text);
            }
            MaskedText::Partly(masked) => {
                *text = Cow::Owned(masked);
                found.masked(key);
            }
        }
    }
}

/// Takes the published fields out of an object.
fn take_published<'a>(object: &mut JsonMap<'a>, gvk: &Gvk) -> Vec<(&'static str, Json<'a>)> {
    let is_kind = |(group, kind, _): &&(&str, &str, _)| *group == gvk.group && *kind == gvk.kind;
    let (Some((_, _, fields)), Some(Json::Map(spec))) =
        (PUBLISHED.iter().find(is_kind), object.get_mut("spec"))
    else {
        return Vec::new();
    };
    fields.iter().filter_map(|field| Some((*field, spec.remove(field)?))).collect()
}

/// What a value is named, and why that counts.
#[derive(Clone, Copy)]
struct NamedAs<'n> {
    name: &'n str,
    meaning: NameMeaning,
    cause: RedactionCause,
}

impl NamedAs<'_> {
    /// Why a value with this name is redacted, if it is.
    fn cause_of(self, value: &Json<'_>) -> Option<RedactionCause> {
        let is_credential = match value {
            Json::String(text) => is_credential(self.meaning, self.name, text),
            Json::Number(_) => self.meaning.covers_numbers(),
            _ => false,
        };
        is_credential.then_some(self.cause)
    }
}

/// Whether a key describes a credential.
fn describes(key: &str) -> bool {
    has_last_word(key, DESCRIPTIVE_WORDS)
}

/// What everything below such a name means.
fn meaning_below(below: Below) -> NameMeaning {
    match below {
        Below::Added => NameMeaning::Added,
        _ => NameMeaning::Credential { numbers: false, below: true },
    }
}

/// Why the value of a key is redacted, if it is: by its name, or by where it is.
fn judge(
    key: &str,
    value: &Json<'_>,
    named: NamedAs<'_>,
    own_key: &str,
    keys: MapKeys,
    around: Surroundings<'_>,
) -> Option<RedactionCause> {
    if named.meaning == NameMeaning::Added {
        return named.cause_of(value);
    }
    if around.below == Below::Added {
        return NamedAs { meaning: NameMeaning::Added, cause: RedactionCause::Below, ..named }
            .cause_of(value);
    }
    if holds_names(own_key) || value.as_str().is_some_and(|text| is_reference(key, text, own_key, keys)) {
        return None;
    }
    if !named.meaning.is_credential() && around.hides(key, own_key) {
        let meaning = meaning_below(around.below);
        return NamedAs { meaning, cause: RedactionCause::Below, ..named }.cause_of(value);
    }
    named.cause_of(value)
}

/// Whether a text that could be a credential is the name of a Secret or of a key in one, by what is beside it.
fn is_reference(key: &str, text: &str, own_key: &str, keys: MapKeys) -> bool {
    match key {
        "secretKey" => keys.has(MapKeys::REFERENCE) || keys.has(MapKeys::SECRET_NAME),
        "secret" => keys.has(MapKeys::KEY) && is_object_name(text),
        "key" => names_a_key(text),
        // nginx: where requests are passed to.
        "pass" => own_key == "action",
        "secretname" => true,
        // `{secretName: shop-db, password: db-password, adminSecretKey: admin-id}`
        key => {
            let is_key = key.ends_with("SecretKey") && is_object_name(text)
                || key.ends_with("key") && is_identifier(text);
            keys.has(MapKeys::SECRET_NAME) && (names_a_key(text) || is_key) || names_itself(key, text)
        }
    }
}

/// Whether a text is the key of a Secret whose name repeats what it is: `passwordSecretKey: DATABASE_PASSWORD`.
fn names_itself(key: &str, text: &str) -> bool {
    let letters = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    key.strip_suffix("SecretKey").is_some_and(|stem| stem.len() > 3 && letters(text).contains(&letters(stem)))
}

/// Whether the values of a map are names: `cookieNames`, `existingSecretKeys`, labels that are selected.
fn holds_names(own_key: &str) -> bool {
    const ENDS: &[&str] = &["Names", "_names", "SecretKeys"];
    ["names", "secretKeys", "matchLabels", "nodeSelector"].contains(&own_key)
        || ENDS.iter().any(|end| own_key.ends_with(end))
}
