//! From the bytes of an object to the attributes of its row: a profile, compiled once.
//!
//! [`CompiledProfile::compile`] alone decides whether a profile is valid: the command line and admission call it.
//! [`CompiledProfile::extract`] runs for every event of every watched object. It reads only the fields that the
//! profile asks for, never what must stay secret, and every expression has a bound.

mod attribute_path;
mod cel;
mod helm;
mod jsonpath;
#[cfg(test)]
mod properties;
mod resource;
pub mod schema;
#[cfg(test)]
mod tests;
mod types;

use std::{
    borrow::Cow,
    cell::{OnceCell, RefCell},
    collections::BTreeMap,
    sync::Arc,
};

use kollect_model::{
    SpecError,
    crd::{
        profile::{
            ALLOW_FULL_RESOURCE_EXPORT, ALLOW_SECRET_EXTRACTION, Attribute, ExportMode, KollectProfileSpec,
        },
        shapes::Gvk,
    },
    schema::{AttributeSchema, AttributeType},
};
use serde_json::value::RawValue;

pub use self::attribute_path::AttributePath;
pub(crate) use self::cel::{CelVariables, Expression};
use self::{
    cel::EvalError,
    helm::{HelmError, HelmField},
    jsonpath::Path,
    resource::{CompiledResourceExport, PruneError},
};
pub use crate::scrub::{RedactedPlace, RedactionCause};
use crate::{
    json::{Json, JsonMap, Projection},
    scrub::{self, CredentialNames, MASK, Redactions, Scrubber},
    store::{NullAttribute, NullCause, NullExamples, RedactedAttribute, RowNotes},
    watch::Metadata,
};

/// What a profile is allowed, by its annotations and by the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptIns {
    /// `data` of Secrets may be read.
    pub secret_extraction: bool,
    /// Whole Secrets may be exported.
    pub full_resource: bool,
    /// The namespace that the operator's `--allow-secret-extraction` must name, besides the annotation;
    /// `None`: the annotation suffices.
    pub operator_must_name: Option<String>,
}

impl OptIns {
    /// The opt-ins in annotations; only the exact value `"true"` counts.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        let is_true = |key: &str| annotations.get(key).is_some_and(|value| value == "true");
        Self {
            secret_extraction: is_true(ALLOW_SECRET_EXTRACTION),
            full_resource: is_true(ALLOW_FULL_RESOURCE_EXPORT),
            operator_must_name: None,
        }
    }

    /// What to do so that Secret data may be read.
    fn how_to_extract_secrets(&self) -> String {
        let annotate = format!("annotate the profile with {ALLOW_SECRET_EXTRACTION}: \"true\"");
        match &self.operator_must_name {
            None => annotate,
            Some(namespace) => {
                format!(
                    "{annotate} and start the operator with --allow-secret-extraction {namespace}; both are needed"
                )
            }
        }
    }
}

/// What an administrator adds to every profile.
#[derive(Clone, Debug)]
pub struct ExtractPolicy {
    /// More names of credentials: values whose key ends in one of these are redacted.
    pub scrub_keys: Vec<String>,
    /// Names that are no credentials, although the table of names has them.
    pub scrub_allow_keys: Vec<String>,
    /// Whether texts are searched for credentials.
    pub scrub_texts: bool,
    /// Whether the places of redacted values are recorded.
    pub records_places: bool,
    /// More kinds (group and kind) whose `data` and `stringData` are treated like those of Secrets.
    pub sensitive_kinds: Vec<(String, String)>,
    /// The most bytes of JSON that an attribute may have; one that has more fails.
    pub max_attribute_bytes: usize,
}

impl ExtractPolicy {
    /// The most bytes of an attribute, unless the administrator says something else.
    pub const MAX_ATTRIBUTE_BYTES: usize = 1 << 20;
}

impl Default for ExtractPolicy {
    fn default() -> Self {
        Self {
            scrub_keys: Vec::new(),
            scrub_allow_keys: Vec::new(),
            scrub_texts: true,
            records_places: false,
            sensitive_kinds: Vec::new(),
            max_attribute_bytes: Self::MAX_ATTRIBUTE_BYTES,
        }
    }
}

/// The most bytes of an exported object: more than the API server stores of one.
const MAX_RESOURCE_BYTES: usize = 4 << 20;

/// A profile whose expressions are valid.
pub struct CompiledProfile {
    /// The profile's kind.
    pub gvk: Gvk,
    /// Possible mistakes that are no errors.
    pub warnings: Vec<SpecError>,
    /// What it declares about the attributes of its rows, by name.
    pub schema: Arc<[AttributeSchema]>,
    attributes: Vec<CompiledAttribute>,
    resource: Option<CompiledResourceExport>,
    projection: Projection,
    /// What CEL expressions read of objects; `helm`: what is read of Helm releases.
    cel: Projection,
    helm: Option<Projection>,
    reads_namespace: bool,
    max_attribute_bytes: usize,
    records_places: bool,
    secret_fields: SecretFields,
}

/// Removes secrets from an object before expressions read it.
struct SecretFields {
    scrubber: Scrubber,
    secret_extraction: bool,
    sensitive_kinds: Vec<(String, String)>,
}

impl SecretFields {
    fn new<'k>(
        policy: &'k ExtractPolicy,
        more_keys: impl Iterator<Item = &'k String>,
        opt_ins: &OptIns,
    ) -> Self {
        let names = CredentialNames::new(policy.scrub_keys.iter().chain(more_keys), &policy.scrub_allow_keys);
        Self {
            scrubber: Scrubber::new(names, policy.scrub_texts),
            secret_extraction: opt_ins.secret_extraction,
            sensitive_kinds: policy.sensitive_kinds.clone(),
        }
    }

    /// Removes what no expression may read, and adds `apiVersion` and `kind`, which items of a list lack: a row must
    /// not depend on how its object was sent.
    fn prepare(
        &self,
        fields: &mut JsonMap<'_>,
        gvk: &Gvk,
        reads: impl Fn(&str) -> bool,
        found: &mut Redactions,
    ) {
        let listed = |(group, kind): &(String, String)| *group == gvk.group && *kind == gvk.kind;
        let sensitive = scrub::is_secret(gvk) || self.sensitive_kinds.iter().any(listed);
        scrub::remove_hidden_fields(fields, sensitive && !self.secret_extraction);
        if let Some(Json::Map(data)) = fields.get_mut("data")
            && scrub::is_secret(gvk)
        {
            // Only the decoder of Helm releases may read one: no opt-in exports what the chart renders.
            data.remove("release");
        }
        if reads("apiVersion") {
            fields.insert("apiVersion", Json::String(Cow::Owned(gvk.api_version())));
        }
        if reads("kind") {
            fields.insert("kind", Json::String(Cow::Owned(gvk.kind.clone())));
        }
        self.scrubber.scrub_object(fields, gvk, found);
    }
}

struct CompiledAttribute {
    name: Arc<str>,
    source: AttributeSource,
    /// What the attribute reads of the object.
    projection: Projection,
    type_: Option<AttributeType>,
    optional: bool,
    /// The value is redacted again: an expression has made it, or the name of the attribute means a credential.
    is_scrubbed: bool,
}

enum AttributeSource {
    Path(Path),
    Cel(Box<Expression>),
    Helm(HelmField),
}

/// How much of an object a profile reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileNeeds {
    /// Nothing but `metadata`: the watch can ask for metadata only.
    MetadataOnly,
    /// Some fields.
    Fields,
    /// An expression reads the object as a whole.
    Everything,
}

/// The result of extracting one object.
#[derive(Debug)]
pub struct Extracted {
    /// The attributes as canonical JSON.
    pub attributes: Arc<RawValue>,
    /// Attributes that have no value, and those with redacted values.
    pub notes: RowNotes,
    /// What the object has in place of values that are missing.
    pub examples: NullExamples,
    /// Where something was redacted, if the policy asks for it.
    pub places: Vec<RedactedPlace>,
}

/// The JSON text of a value, without spare capacity; the buffer is reused.
fn to_raw_json(value: &Json<'_>) -> Result<Box<RawValue>, ExtractError> {
    thread_local! {
        static BUFFER: RefCell<String> = const { RefCell::new(String::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        value.write(buffer);
        let raw = serde_json::from_str::<&RawValue>(buffer).map(RawValue::to_owned);
        buffer.shrink_to(64 << 10);
        raw.map_err(|error| ExtractError::Object(error.to_string()))
    })
}

/// What the projection reads of an object.
fn read_fields<'a>(raw: &'a RawValue, projection: &Projection) -> Result<JsonMap<'a>, ExtractError> {
    match Json::read(raw.get(), projection) {
        Ok(Json::Map(fields)) => Ok(fields),
        Ok(_) => Err(ExtractError::Object("it is not a map of fields".into())),
        Err(error) => Err(ExtractError::Object(error.to_string())),
    }
}

/// What CEL sees of an object's namespace; its secrets are removed as those of the object are.
fn namespace_object<'a>(metadata: &Metadata, scrubber: &Scrubber, found: &mut Redactions) -> Json<'a> {
    let text = |text: &str| Json::String(Cow::Owned(text.to_owned()));
    let map = |entries: &BTreeMap<String, String>| {
        let entries = entries.iter().map(|(key, value)| (Cow::Owned(key.clone()), text(value)));
        Json::Map(entries.collect())
    };
    let entries = [
        (Cow::Borrowed("name"), text(&metadata.name)),
        (Cow::Borrowed("labels"), map(&metadata.labels)),
        (Cow::Borrowed("annotations"), map(&metadata.annotations)),
    ];
    let metadata = Json::Map(entries.into_iter().collect());
    let mut namespace: JsonMap<'_> = [(Cow::Borrowed("metadata"), metadata)].into_iter().collect();
    scrub::remove_hidden_fields(&mut namespace, false);
    scrubber.scrub(&mut namespace, "namespaceObject", found);
    Json::Map(namespace)
}

/// Why an object has no row.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExtractError {
    /// The object is not a JSON object.
    #[error("read the object: {0}")]
    Object(String),
    /// A required attribute failed.
    #[error("attribute {name}: {problem}")]
    Attribute {
        /// Its name.
        name: String,
        /// Why.
        problem: String,
    },
    /// The extraction panicked on the object.
    #[error("internal error; please report it")]
    Panicked,
}

impl CompiledProfile {
    /// Compiles a profile, or returns everything that is wrong with it.
    pub fn compile(
        spec: &KollectProfileSpec,
        opt_ins: &OptIns,
        policy: &ExtractPolicy,
    ) -> Result<Self, Vec<SpecError>> {
        let mut errors = Vec::new();
        let mut warnings = Vec::new();
        let mut attributes = Vec::with_capacity(spec.attributes.len());
        let prune = spec.export.as_ref().and_then(|export| export.prune.as_ref());
        let secret_fields =
            SecretFields::new(policy, prune.iter().flat_map(|prune| &prune.scrub_keys), opt_ins);
        let compiler = ProfileCompiler { gvk: &spec.target_gvk, opt_ins, scrubber: &secret_fields.scrubber };
        for (index, attribute) in spec.attributes.iter().enumerate() {
            let field = format!("spec.attributes[{index}]");
            if !attribute.type_.is_empty() && AttributeType::named(&attribute.type_).is_none() {
                let problem =
                    "is not enforced; known: string, int, number, bool, list, map, timestamp, quantity";
                warnings.push(SpecError::new(
                    format!("{field}.type"),
                    &attribute.type_.as_str().into(),
                    problem,
                ));
            }
            warnings.extend(compiler.redacted_name(attribute, &field));
            match compiler.attribute(attribute, &format!("{field}.path")) {
                Ok(valid) => {
                    warnings.extend(valid.hint(attribute, &field));
                    attributes.push(valid);
                }
                Err(error) => errors.push(error),
            }
        }
        let resource = compiler.resource(spec).unwrap_or_else(|problems| {
            errors.extend(problems);
            None
        });
        errors.extend(check_metrics(spec));
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut profile = Self {
            gvk: spec.target_gvk.clone(),
            warnings,
            schema: declared(&attributes, resource.as_ref()),
            reads_namespace: attributes
                .iter()
                .any(|a| matches!(&a.source, AttributeSource::Cel(e) if e.reads_namespace()))
                || resource.as_ref().is_some_and(CompiledResourceExport::reads_namespace),
            projection: Projection::default(),
            cel: Projection::default(),
            helm: None,
            attributes,
            resource,
            max_attribute_bytes: policy.max_attribute_bytes,
            records_places: policy.records_places,
            secret_fields,
        };
        profile.project();
        Ok(profile)
    }

    /// Computes what is read of objects and of Helm releases.
    fn project(&mut self) {
        for attribute in &self.attributes {
            self.projection = self.projection.union(&attribute.projection);
            match &attribute.source {
                AttributeSource::Path(_) => {}
                AttributeSource::Cel(_) => self.cel = self.cel.union(&attribute.projection),
                AttributeSource::Helm(field) => field.project(self.helm.get_or_insert_default()),
            }
        }
        if let Some(resource) = &self.resource {
            resource.project(&mut self.projection);
        }
        if self.helm.is_some() {
            self.projection.key("data").key("release").take_all();
        }
        scrub::add_redaction_fields(&mut self.projection);
        self.helm.iter_mut().for_each(scrub::add_redaction_fields);
    }

    /// Whether an expression reads the object's namespace.
    pub(crate) fn reads_namespace(&self) -> bool {
        self.reads_namespace
    }

    /// Whether rows have whole objects.
    pub fn exports_resources(&self) -> bool {
        self.resource.is_some()
    }

    /// How much of an object the profile reads.
    pub fn needs(&self) -> ProfileNeeds {
        if self.projection.is_everything() {
            ProfileNeeds::Everything
        } else if self.projection.reads_only("metadata") {
            ProfileNeeds::MetadataOnly
        } else {
            ProfileNeeds::Fields
        }
    }

    /// The attributes of an object of the kind, or why it has no row.
    pub fn extract(
        &self,
        gvk: &Gvk,
        raw: &RawValue,
        namespace: Option<&Metadata>,
    ) -> Result<Extracted, ExtractError> {
        let mut fields = read_fields(raw, &self.projection)?;
        if self.resource.as_ref().is_some_and(|resource| resource.exports_everything_of(&fields)) {
            fields = read_fields(raw, &Projection::everything())?;
        }
        let mut found = Redactions::new(self.records_places);
        let release = self.release(&fields);
        let exports_object = self.resource.is_some();
        let reads = |key: &str| exports_object || self.projection.of_key(key).is_some();
        self.secret_fields.prepare(&mut fields, gvk, reads, &mut found);
        let object = Json::Map(fields);
        let namespace = namespace.filter(|_| self.reads_namespace);
        let scrubber = &self.secret_fields.scrubber;
        let namespace = namespace.map(|metadata| namespace_object(metadata, scrubber, &mut found));
        let (mut notes, mut examples) = (RowNotes::default(), NullExamples::new());
        let mut attributes =
            ObjectReading::new(self, &object, namespace.as_ref(), release.as_ref(), &mut found).attributes(
                &mut notes,
                &mut examples,
                &mut found,
            )?;
        if let (Some(resource), Json::Map(fields)) = (&self.resource, object) {
            let failed = |problem| ExtractError::Attribute { name: resource.name.to_string(), problem };
            let mut exported = match resource.build(fields, namespace.as_ref()) {
                Ok(exported) => exported,
                Err(PruneError::Redacted) => Json::Redacted,
                Err(PruneError::Failed(problem)) => return Err(failed(problem)),
            };
            if exported.size() > MAX_RESOURCE_BYTES {
                let problem =
                    format!("the object is larger than {MAX_RESOURCE_BYTES} bytes: prune parts of it");
                return Err(failed(problem));
            }
            if scrubber.meaning(&resource.name).is_credential() {
                scrubber.scrub_attribute(&resource.name, &mut exported, None, &mut found);
            }
            note_redactions(&resource.name, &exported, &found, &mut notes);
            attributes.insert(&*resource.name, exported);
        }
        let attributes = to_raw_json(&Json::Map(attributes))?.into();
        Ok(Extracted { attributes, notes, examples, places: found.into_places() })
    }

    /// The Helm release of a Secret, decoded if the profile reads one.
    fn release(&self, fields: &JsonMap<'_>) -> Option<Result<String, HelmError>> {
        self.helm.as_ref().map(|_| {
            let data = fields.get("data").and_then(|data| data.get("release"));
            helm::decode(data.and_then(Json::as_str))
        })
    }
}

/// The extraction of one object. What several attributes share is computed once.
struct ObjectReading<'r, 'a> {
    profile: &'a CompiledProfile,
    object: &'r Json<'a>,
    namespace: Option<&'r Json<'a>>,
    /// `None`: what all expressions read is too large.
    variables: OnceCell<Option<CelVariables<'r>>>,
    release: Option<Result<Json<'a>, HelmError>>,
}

impl<'r, 'a> ObjectReading<'r, 'a> {
    fn new(
        profile: &'a CompiledProfile,
        object: &'r Json<'a>,
        namespace: Option<&'r Json<'a>>,
        release: Option<&'a Result<String, HelmError>>,
        found: &mut Redactions,
    ) -> Self {
        let SecretFields { scrubber, secret_extraction, .. } = &profile.secret_fields;
        let read = |text: &'a String| {
            let projection = profile.helm.as_ref().unwrap_or(&profile.projection);
            helm::read(text, projection, *secret_extraction, scrubber, found)
        };
        let release = release.map(|text| text.as_ref().map_err(|error| *error).and_then(read));
        Self { profile, object, namespace, variables: OnceCell::new(), release }
    }

    fn attributes(
        &self,
        notes: &mut RowNotes,
        examples: &mut NullExamples,
        found: &mut Redactions,
    ) -> Result<JsonMap<'a>, ExtractError> {
        let scrubber = &self.profile.secret_fields.scrubber;
        let mut attributes = JsonMap::with_capacity(self.profile.attributes.len() + 1);
        for attribute in &self.profile.attributes {
            let name = &attribute.name;
            let (mut value, mut cause, mut types) = match self.value(attribute) {
                Ok(value) => (value, NullCause::Missing, None),
                Err(problem) if attribute.optional => {
                    examples.push((name.clone(), problem));
                    (Json::Null, NullCause::Failed, None)
                }
                Err(problem) => return Err(ExtractError::Attribute { name: name.to_string(), problem }),
            };
            if attribute.is_scrubbed {
                scrubber.scrub_attribute(name, &mut value, attribute.expression(), found);
            }
            if let Some(type_) = attribute.type_ {
                value = types::convert(type_, value, attribute.yields_list()).unwrap_or_else(|value| {
                    (cause, types) = (NullCause::TypeMismatch, Some((type_.name(), value.kind())));
                    // Values of Secrets are in rows only.
                    if !self.profile.secret_fields.secret_extraction {
                        examples.push((name.clone(), shown(&value)));
                    }
                    Json::Null
                });
            }
            if value.is_null() {
                notes.nulls.push(NullAttribute { name: name.clone(), cause, types });
            }
            note_redactions(name, &value, found, notes);
            if !(attribute.optional && value.is_null()) {
                attributes.insert(&**name, value);
            }
        }
        Ok(attributes)
    }

    fn value(&self, attribute: &CompiledAttribute) -> Result<Json<'a>, String> {
        let max_bytes = self.profile.max_attribute_bytes;
        match &attribute.source {
            AttributeSource::Path(path) => path.value(self.object, max_bytes),
            AttributeSource::Cel(expression) => {
                let of = |projection| CelVariables::new(self.object, projection, self.namespace);
                let evaluate = |variables: &CelVariables<'_>| expression.evaluate(variables, max_bytes);
                // What all expressions read may be too much, though this one reads little.
                let value = match self.variables.get_or_init(|| of(&self.profile.cel).ok()) {
                    Some(variables) => evaluate(variables),
                    None => of(&attribute.projection).and_then(|variables| evaluate(&variables)),
                };
                match value {
                    Err(EvalError::Redacted) => Ok(Json::Redacted),
                    Err(EvalError::ResultTooLarge) => Err(jsonpath::too_large(max_bytes)),
                    value => value.map_err(|error| error.to_string()),
                }
            }
            AttributeSource::Helm(field) => match &self.release {
                Some(Ok(release)) => match field.value(release) {
                    value if value.size() > max_bytes => Err(jsonpath::too_large(max_bytes)),
                    value => Ok(value),
                },
                Some(Err(error)) => Err(error.to_string()),
                None => Err(HelmError::Missing.to_string()),
            },
        }
    }
}

/// The beginning of a value as JSON, in one line, for messages.
fn shown(value: &Json<'_>) -> String {
    const CHARACTERS: usize = 60;
    let mut text = String::new();
    value.write(&mut text);
    match text.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Notes how many values of an attribute are redacted, if there are any.
fn note_redactions(name: &Arc<str>, value: &Json<'_>, found: &Redactions, notes: &mut RowNotes) {
    fn count(value: &Json<'_>, has_masked: bool) -> usize {
        match value {
            Json::Redacted => 1,
            Json::String(text) => usize::from(has_masked && text.contains(MASK)),
            Json::List(items) => items.iter().map(|item| count(item, has_masked)).sum(),
            Json::Map(map) => map.iter().map(|(_, value)| count(value, has_masked)).sum(),
            Json::Null | Json::Bool(_) | Json::Number(_) => 0,
        }
    }
    if found.is_empty() {
        return;
    }
    let values = count(value, found.has_masked);
    if values > 0 {
        notes.redactions.push(RedactedAttribute { name: name.clone(), values });
    }
}

impl CompiledAttribute {
    /// A hint about a path that is valid and finds nothing.
    fn hint(&self, attribute: &Attribute, field: &str) -> Option<SpecError> {
        let AttributeSource::Path(path) = &self.source else { return None };
        let problem = path.hint()?;
        Some(SpecError::new(format!("{field}.path"), &attribute.path.as_str().into(), problem))
    }

    /// The text of the expression, if it is one.
    fn expression(&self) -> Option<&str> {
        match &self.source {
            AttributeSource::Cel(expression) => Some(expression.text()),
            _ => None,
        }
    }

    fn yields_list(&self) -> bool {
        matches!(&self.source, AttributeSource::Path(path) if !path.is_definite())
    }
}

/// The CEL expression of a rule: an object matches only if the result is true.
pub(crate) struct MatchPolicy {
    expression: Expression,
    projection: Projection,
    secret_fields: SecretFields,
}

impl MatchPolicy {
    pub(crate) fn compile(text: &str, field: &str, policy: &ExtractPolicy) -> Result<Self, SpecError> {
        let expression =
            Expression::compile(text).map_err(|error| with_caret(field, text, error.at, &error.problem))?;
        let mut projection = Projection::default();
        expression.add_reads_to(&mut projection);
        scrub::add_redaction_fields(&mut projection);
        let secret_fields = SecretFields::new(policy, std::iter::empty(), &OptIns::default());
        Ok(Self { expression, projection, secret_fields })
    }

    /// Whether nothing but `metadata` is read.
    pub(crate) fn reads_only_metadata(&self) -> bool {
        self.projection.reads_only("metadata")
    }

    pub(crate) fn reads_namespace(&self) -> bool {
        self.expression.reads_namespace()
    }

    /// Whether the policy is true. It can read no more than a profile without opt-ins. `None`: it depends on a redacted value.
    pub(crate) fn matches(&self, gvk: &Gvk, raw: &RawValue, namespace: Option<&Metadata>) -> Option<bool> {
        let Ok(Json::Map(mut fields)) = Json::read(raw.get(), &self.projection) else { return Some(false) };
        let (reads, mut found) = (|key: &str| self.projection.of_key(key).is_some(), Redactions::default());
        self.secret_fields.prepare(&mut fields, gvk, reads, &mut found);
        let namespace = namespace.filter(|_| self.expression.reads_namespace());
        let scrubber = &self.secret_fields.scrubber;
        let namespace = namespace.map(|metadata| namespace_object(metadata, scrubber, &mut found));
        let object = Json::Map(fields);
        match CelVariables::new(&object, &self.projection, namespace.as_ref()) {
            Ok(variables) => self.expression.is_true(&variables),
            Err(_) => Some(false),
        }
    }
}

impl std::fmt::Debug for MatchPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MatchPolicy").field("projection", &self.projection).finish_non_exhaustive()
    }
}

/// Names of everything that rows of the profile have.
pub fn attribute_names(spec: &KollectProfileSpec) -> impl Iterator<Item = &str> {
    let resource = spec.export.as_ref().filter(|export| export.mode == ExportMode::Resource);
    let attributes = spec.attributes.iter().map(|attribute| attribute.name.as_str());
    attributes.chain(resource.map(|export| export.as_.as_str()))
}

/// What is wrong with the series of a profile.
fn check_metrics(spec: &KollectProfileSpec) -> Vec<SpecError> {
    let mut errors = Vec::new();
    for (index, metric) in spec.metrics.iter().enumerate() {
        let labels = metric.labels.iter().enumerate();
        let labels = labels.map(|(label, text)| (format!("spec.metrics[{index}].labels[{label}]"), text));
        for (field, text) in labels.chain([(format!("spec.metrics[{index}].path"), &metric.path)]) {
            if let Err(problem) = AttributePath::parse(text, attribute_names(spec)) {
                errors.push(SpecError::new(field, &text.as_str().into(), problem));
            }
        }
    }
    errors
}

/// What a profile declares about the attributes of its rows.
fn declared(
    attributes: &[CompiledAttribute],
    resource: Option<&CompiledResourceExport>,
) -> Arc<[AttributeSchema]> {
    let object = resource.map(|resource| AttributeSchema {
        name: resource.name.clone(),
        type_: Some(AttributeType::Map),
        optional: false,
    });
    let attributes = attributes.iter().map(|attribute| AttributeSchema {
        name: attribute.name.clone(),
        type_: attribute.type_,
        optional: attribute.optional,
    });
    let mut schema: Vec<AttributeSchema> = attributes.chain(object).collect();
    schema.sort();
    schema.into()
}

/// Turns the parts of a spec into their compiled form.
struct ProfileCompiler<'a> {
    gvk: &'a Gvk,
    opt_ins: &'a OptIns,
    scrubber: &'a Scrubber,
}

impl ProfileCompiler<'_> {
    /// A warning about a name that hides the values of its attribute.
    fn redacted_name(&self, attribute: &Attribute, field: &str) -> Option<SpecError> {
        let harmless = matches!(AttributeType::named(&attribute.type_), Some(AttributeType::Bool));
        let is_credential = self.scrubber.meaning(&attribute.name).is_credential() && !harmless;
        is_credential.then(|| {
            let problem = "means a credential, so texts of this attribute are redacted; if they are none, choose another name, \
                           such as secretNames";
            SpecError::new(format!("{field}.name"), &attribute.name.as_str().into(), problem)
        })
    }

    fn attribute(&self, attribute: &Attribute, field: &str) -> Result<CompiledAttribute, SpecError> {
        let text = attribute.path.trim();
        let mut projection = Projection::default();
        let source = if let Some(expression) = text.strip_prefix("cel:") {
            let expression = Expression::compile(expression)
                .map_err(|error| with_caret(field, expression, error.at, &error.problem))?;
            expression.add_reads_to(&mut projection);
            AttributeSource::Cel(Box::new(expression))
        } else if let Some(name) = text.strip_prefix("helm:release.") {
            if !scrub::is_secret(self.gvk) {
                let problem = "Helm releases are in Secrets: set targetGVK to version v1, kind Secret";
                return Err(with_caret(field, text, None, problem));
            }
            let refused = |problem: String| with_caret(field, text, Some("helm:release.".len()), &problem);
            let helm_field = HelmField::parse(name).map_err(refused)?;
            if let Some(guarded) = helm_field.guarded().filter(|_| !self.opt_ins.secret_extraction) {
                let how = self.opt_ins.how_to_extract_secrets();
                return Err(refused(format!("{guarded} may hold secrets: {how}")));
            }
            AttributeSource::Helm(helm_field)
        } else {
            let path =
                Path::parse(text).map_err(|error| with_caret(field, text, Some(error.at), &error.problem))?;
            path.project(&mut projection);
            AttributeSource::Path(path)
        };
        let reads_data = projection.has_key("data") || projection.has_key("stringData");
        if scrub::is_secret(self.gvk) && reads_data && !self.opt_ins.secret_extraction {
            let problem = format!("reads Secret data: {}", self.opt_ins.how_to_extract_secrets());
            return Err(with_caret(field, text, None, &problem));
        }
        let is_made = matches!(source, AttributeSource::Cel(_));
        Ok(CompiledAttribute {
            name: attribute.name.as_str().into(),
            is_scrubbed: is_made || self.scrubber.meaning(&attribute.name).is_credential(),
            source,
            projection,
            type_: AttributeType::named(&attribute.type_),
            optional: attribute.optional,
        })
    }

    fn resource(&self, spec: &KollectProfileSpec) -> Result<Option<CompiledResourceExport>, Vec<SpecError>> {
        let Some(export) = spec.export.as_ref().filter(|export| export.mode == ExportMode::Resource) else {
            return Ok(None);
        };
        if scrub::is_secret(self.gvk) && !self.opt_ins.full_resource {
            let problem = format!(
                "exports whole Secrets: annotate the profile with {ALLOW_FULL_RESOURCE_EXPORT}: \"true\""
            );
            return Err(vec![SpecError::new("spec.export.mode", &"Resource".into(), problem)]);
        }
        CompiledResourceExport::compile(export).map(Some)
    }
}

/// An error about a text, with the line of the position and a caret below it.
fn with_caret(field: impl Into<String>, text: &str, at: Option<usize>, problem: &str) -> SpecError {
    let Some(at) = at else { return SpecError::new(field, &text.into(), problem) };
    let before: String = text.chars().take(at).collect();
    let (number, column) = match before.rsplit_once('\n') {
        Some((earlier, line)) => (earlier.matches('\n').count() + 1, line.chars().count()),
        None => (0, at),
    };
    let line = text.split('\n').nth(number).unwrap_or_default().replace('\t', " ");
    let position = if text.trim_end().contains('\n') {
        format!(" (line {}, column {})", number + 1, column + 1)
    } else {
        String::new()
    };
    let problem = format!("{problem}{position}\n    {line}\n    {}^", " ".repeat(column));
    SpecError::new(field, &text.into(), problem)
}
