//! What was redacted in an object: how much, and where if that was asked for. Never a value.

use std::fmt::{self, Write as _};

/// Why a value was redacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RedactionCause {
    /// Its name, or that of its list or attribute, means a credential.
    Name,
    /// The `name` or `key` beside it means a credential.
    Pair,
    /// A name above it means a credential.
    Below,
    /// The text is a credential.
    Text,
    /// A part of the text is a credential, and only that part was masked.
    PartOfText,
}

impl fmt::Display for RedactionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "its name means a credential",
            Self::Pair => "the name beside it means a credential",
            Self::Below => "a name above it means a credential",
            Self::Text => "the text is a credential",
            Self::PartOfText => "a part of the text is a credential",
        })
    }
}

/// Where a value was redacted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedactedPlace {
    /// As in `spec.containers[0].env[1].value`.
    pub path: String,
    /// Why.
    pub cause: RedactionCause,
}

/// What was redacted in an object.
#[derive(Debug, Default)]
pub(crate) struct Redactions {
    /// A text was masked in part.
    pub(crate) has_masked: bool,
    has_redacted: bool,
    places: Option<PlaceRecorder>,
}

#[derive(Debug, Default)]
struct PlaceRecorder {
    path: String,
    /// The length of the path before each step.
    steps: Vec<usize>,
    places: Vec<RedactedPlace>,
}

impl Redactions {
    /// Redactions whose places are recorded, if that is asked for.
    pub(crate) fn new(with_places: bool) -> Self {
        Self { places: with_places.then(PlaceRecorder::default), ..Self::default() }
    }

    /// Whether nothing was redacted.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_masked && !self.has_redacted
    }

    pub(crate) fn into_places(self) -> Vec<RedactedPlace> {
        self.places.map(|recorder| recorder.places).unwrap_or_default()
    }

    pub(super) fn enter(&mut self, key: &str) {
        if let Some(recorder) = &mut self.places {
            recorder.steps.push(recorder.path.len());
            recorder.push_key(key);
        }
    }

    pub(super) fn enter_item(&mut self, index: usize) {
        if let Some(recorder) = &mut self.places {
            recorder.steps.push(recorder.path.len());
            write!(recorder.path, "[{index}]").expect("writing to a String does not fail");
        }
    }

    pub(super) fn leave(&mut self) {
        if let Some(recorder) = &mut self.places {
            recorder.path.truncate(recorder.steps.pop().unwrap_or_default());
        }
    }

    /// A value was redacted: that of a key, or an item if the key is empty.
    pub(super) fn redacted(&mut self, key: &str, cause: RedactionCause) {
        self.has_redacted = true;
        if let Some(recorder) = &mut self.places {
            let length = recorder.path.len();
            recorder.push_key(key);
            recorder.places.push(RedactedPlace { path: recorder.path.clone(), cause });
            recorder.path.truncate(length);
        }
    }

    /// A part of a text was masked.
    pub(super) fn masked(&mut self, key: &str) {
        self.has_masked = true;
        self.redacted(key, RedactionCause::PartOfText);
    }
}

impl PlaceRecorder {
    fn push_key(&mut self, key: &str) {
        let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if key.is_empty() {
            return;
        }
        if !is_plain {
            let shown: String =
                key.chars().map(|c| if c.is_control() || c == '\'' { '?' } else { c }).collect();
            write!(self.path, "['{shown}']").expect("writing to a String does not fail");
            return;
        }
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(key);
    }
}
