//! An attribute, or a value inside of one, that a series of a profile names: `replicas`, `resource.spec.replicas`.

use serde_json::value::RawValue;

use crate::{
    extract::jsonpath::Path,
    json::{Json, Projection},
};

/// The name of an attribute and, if there is one, the path of a value inside of it.
pub struct AttributePath {
    attribute: String,
    inside: Option<Path>,
}

impl AttributePath {
    /// Reads a path whose first part is one of the names; the longest that fits.
    pub fn parse<'n>(text: &str, names: impl IntoIterator<Item = &'n str>) -> Result<Self, String> {
        let fits = |name: &&str| {
            let rest = text.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let Some(name) = names.into_iter().filter(fits).max_by_key(|name| name.len()) else {
            return Err(
                "must be the name of an attribute, or a path inside of one, such as name.field".into()
            );
        };
        let rest = text.strip_prefix(name).unwrap_or_default();
        if rest.is_empty() {
            return Ok(Self { attribute: name.to_owned(), inside: None });
        }
        match Path::parse(&format!("${rest}")) {
            Ok(path) if path.is_definite() => Ok(Self { attribute: name.to_owned(), inside: Some(path) }),
            Ok(_) => Err("must name one value: no wildcard, slice, filter or ..".into()),
            Err(error) => Err(error.problem),
        }
    }

    /// The attribute that the path reads.
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// The JSON of the value, of the JSON of its attribute.
    pub fn value(&self, attribute: &RawValue) -> Option<String> {
        let Some(path) = &self.inside else { return Some(attribute.get().to_owned()) };
        let mut projection = Projection::default();
        path.project(&mut projection);
        let attribute = Json::read(attribute.get(), &projection).ok()?;
        let mut text = String::new();
        path.value(&attribute, usize::MAX).ok()?.write(&mut text);
        Some(text)
    }
}
