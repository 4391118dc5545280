//! `helm:release.<field>`: what Helm stores in its Secrets, decoded at most once per object.
//!
//! Only this decoder reads `data.release`. Manifests, templates and values hold secrets and are never exported;
//! `config` and `info.notes` are, if the profile opted in.

use std::io::Read;

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::read::GzDecoder;
use serde_json::value::RawValue;

use crate::{
    json::{Json, JsonMap, Projection},
    scrub::{Redactions, Scrubber},
};

/// A Secret holds 1 MiB at most.
const MAX_COMPRESSED: usize = 2 << 20;
/// Real releases stay below a few megabytes; a larger one may be a decompression bomb.
const MAX_DECOMPRESSED: u64 = 32 << 20;

/// Fields that are never exported, neither alone nor as part of a parent.
const DENIED: [&[&str]; 6] = [
    &["manifest"],
    &["hooks"],
    &["chart", "templates"],
    &["chart", "files"],
    &["chart", "values"],
    &["chart", "raw"],
];

/// Fields that may hold secrets and need the opt-in.
const GUARDED: [&[&str]; 2] = [&["config"], &["info", "notes"]];

/// A field of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HelmField(Vec<String>);

/// Why a release could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelmError {
    #[error("the Secret holds no Helm release: data.release is missing")]
    Missing,
    #[error("the Helm release is larger than {} MiB, or {} MiB decompressed", MAX_COMPRESSED >> 20, MAX_DECOMPRESSED >> 20)]
    TooLarge,
    #[error("the Helm release is not base64, gzip and JSON")]
    Malformed,
}

impl HelmField {
    /// The field that a profile names, or why it may not have it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let path = match text {
            "releaseName" => "name",
            "chartName" => "chart.metadata.name",
            "chartVersion" => "chart.metadata.version",
            "appVersion" => "chart.metadata.appVersion",
            "revision" => "version",
            "status" => "info.status",
            "lastDeployed" => "info.last_deployed",
            other => other,
        };
        let field = Self(path.split('.').map(str::to_owned).collect());
        if field.0.iter().any(|segment| segment.trim().is_empty()) {
            return Err("name a field of the release, such as chartVersion".into());
        }
        if let Some(denied) = DENIED.iter().find(|denied| field.is_below(denied)) {
            return Err(format!(
                "{} contains rendered templates or chart values, which are never exported",
                denied.join(".")
            ));
        }
        Ok(field)
    }

    /// The part of the release that may hold secrets, if the field is in one.
    pub(crate) fn guarded(&self) -> Option<String> {
        GUARDED.iter().find(|guarded| self.is_below(guarded)).map(|guarded| guarded.join("."))
    }

    fn is_below(&self, parent: &[&str]) -> bool {
        self.0.len() >= parent.len() && self.0.iter().zip(parent).all(|(a, b)| a == b)
    }

    /// Adds the field to what is read of a release.
    pub(crate) fn project(&self, projection: &mut Projection) {
        self.0.iter().fold(projection, |projection, segment| projection.key(segment)).take_all();
    }

    /// The field's value; missing is null.
    pub(crate) fn value<'a>(&self, release: &Json<'a>) -> Json<'a> {
        let value = self.0.iter().try_fold(release, |value, segment| value.get(segment));
        value.cloned().unwrap_or(Json::Null)
    }
}

/// Decodes `data.release` into JSON text.
pub(crate) fn decode(encoded: Option<&str>) -> Result<String, HelmError> {
    let encoded = encoded.ok_or(HelmError::Missing)?;
    if encoded.len() > MAX_COMPRESSED {
        return Err(HelmError::TooLarge);
    }
    // Secrets are base64, and Helm encodes its own payload once more.
    let mut bytes = STANDARD.decode(encoded.trim()).map_err(|_| HelmError::Malformed)?;
    if let Ok(inner) = STANDARD.decode(&bytes) {
        bytes = inner;
    }
    if bytes.starts_with(&[0x1f, 0x8b, 0x08]) {
        let mut text = Vec::new();
        let limited = &mut GzDecoder::new(&*bytes).take(MAX_DECOMPRESSED + 1);
        limited.read_to_end(&mut text).map_err(|_| HelmError::Malformed)?;
        bytes = text;
    }
    if bytes.len() as u64 > MAX_DECOMPRESSED {
        return Err(HelmError::TooLarge);
    }
    String::from_utf8(bytes).map_err(|_| HelmError::Malformed)
}

/// Reads a decoded release without the fields that must not be exported.
pub(crate) fn read<'a>(
    text: &'a str,
    projection: &Projection,
    opted_in: bool,
    scrubber: &Scrubber,
    found: &mut Redactions,
) -> Result<Json<'a>, HelmError> {
    // The reader below expects valid JSON, and this text has not been validated before.
    serde_json::from_str::<&RawValue>(text).map_err(|_| HelmError::Malformed)?;
    let mut release = Json::read(text, projection).map_err(|_| HelmError::Malformed)?;
    let Json::Map(map) = &mut release else { return Err(HelmError::Malformed) };
    DENIED.iter().for_each(|path| remove_path(map, path));
    if !opted_in {
        GUARDED.iter().for_each(|path| remove_path(map, path));
    }
    scrubber.scrub(map, "release", found);
    Ok(release)
}

fn remove_path(map: &mut JsonMap<'_>, path: &[&str]) {
    match path {
        [] => {}
        [last] => drop(map.remove(last)),
        [first, rest @ ..] => {
            if let Some(Json::Map(child)) = map.get_mut(first) {
                remove_path(child, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn encode(text: &str) -> String {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        STANDARD.encode(STANDARD.encode(gzip.finish().unwrap()))
    }

    const RELEASE: &str = r#"{"name":"web","version":3,"manifest":"hunter2","hooks":["hunter2"],"config":{"a":"hunter2"},
        "info":{"status":"deployed","notes":"hunter2"},
        "chart":{"metadata":{"name":"web","version":"1.2.3"},"templates":["hunter2"],"files":1,"values":{"x":"hunter2"},"raw":"hunter2"}}"#;

    fn field(name: &str, opted_in: bool) -> String {
        let field = HelmField::parse(name).unwrap();
        let mut projection = Projection::default();
        field.project(&mut projection);
        let text = decode(Some(&encode(RELEASE))).unwrap();
        let scrubber = Scrubber::default();
        let release = read(&text, &projection, opted_in, &scrubber, &mut Redactions::default()).unwrap();
        let mut out = String::new();
        field.value(&release).write(&mut out);
        out
    }

    #[test]
    fn fields_are_found_by_their_path_and_by_aliases() {
        for (name, expected) in [
            ("releaseName", r#""web""#),
            ("revision", "3"),
            ("chartVersion", r#""1.2.3""#),
            ("status", r#""deployed""#),
            ("chart.metadata", r#"{"name":"web","version":"1.2.3"}"#),
            ("nope.deeper", "null"),
        ] {
            assert_eq!(field(name, false), expected, "{name}");
        }
        assert_eq!(field("config", true), r#"{"a":"hunter2"}"#);
    }

    #[test]
    fn denied_fields_are_refused_and_removed_from_their_parents() {
        for name in ["manifest", "hooks", "chart.templates", "chart.values.x", "chart.raw", "chart.files.0"] {
            assert!(HelmField::parse(name).is_err(), "{name}");
        }
        for name in ["config", "config.a", "info.notes"] {
            assert!(HelmField::parse(name).unwrap().guarded().is_some(), "{name}");
        }
        for name in ["chart", "info"] {
            assert!(!field(name, false).contains("hunter2"), "{}", field(name, false));
        }
        assert!(!field("chart", true).contains("hunter2"), "no opt-in opens the chart");
        assert!(HelmField::parse("").is_err() && HelmField::parse("a..b").is_err());
    }

    #[test]
    fn decompression_bombs_and_malformed_releases_are_errors() {
        let bomb = encode(&" ".repeat(usize::try_from(MAX_DECOMPRESSED).unwrap() + 1));
        assert!(bomb.len() < MAX_COMPRESSED);
        assert_eq!(decode(Some(&bomb)), Err(HelmError::TooLarge));
        assert_eq!(decode(Some(&"A".repeat(MAX_COMPRESSED + 1))), Err(HelmError::TooLarge));
        assert_eq!(decode(None), Err(HelmError::Missing));
        assert_eq!(decode(Some("***")), Err(HelmError::Malformed));
        let truncated = STANDARD.encode([0x1f, 0x8b, 0x08, 0, 0]);
        assert_eq!(decode(Some(&truncated)), Err(HelmError::Malformed));
        for text in ["[1]", r#"{"version":1-2}"#, r#"{"x":}"#] {
            let (everything, scrubber) = (Projection::everything(), Scrubber::default());
            let read = read(text, &everything, false, &scrubber, &mut Redactions::default());
            assert_eq!(read, Err(HelmError::Malformed), "{text}");
        }
    }
}
