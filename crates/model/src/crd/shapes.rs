//! Shapes that several kinds share.

use std::{collections::BTreeMap, fmt, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::rules;

/// Group, version and kind of a Kubernetes resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Gvk {
    /// API group; empty or absent is the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub group: String,
    /// API version, such as `v1`.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// Kind, such as `Deployment`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
}

impl Gvk {
    /// `group/version`, or the bare version in the core group: what stands in `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.api_version(), self.kind)
    }
}

/// Selects by labels; all terms must hold. No terms select everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LabelSelector {
    /// Labels that must be present with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Set-based terms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// One set-based term of a label selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    (
        "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
        "In and NotIn need values; Exists and DoesNotExist take none",
    ),
])))]
pub struct LabelRequirement {
    /// Label key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// How the label is compared with `values`.
    pub operator: LabelOperator,
    /// Operands of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// Operators of set-based label terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether there is nothing to match: such a selector selects everything.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        labels_match(&self.match_labels, &self.match_expressions, labels)
    }
}

/// Whether labels satisfy equality terms and set-based terms.
pub fn labels_match(
    equal: &BTreeMap<String, String>,
    terms: &[LabelRequirement],
    labels: &BTreeMap<String, String>,
) -> bool {
    equal.iter().all(|(key, value)| labels.get(key) == Some(value))
        && terms.iter().all(|term| {
            let label = labels.get(&term.key);
            match term.operator {
                LabelOperator::In => label.is_some_and(|l| term.values.contains(l)),
                LabelOperator::NotIn => !label.is_some_and(|l| term.values.contains(l)),
                LabelOperator::Exists => label.is_some(),
                LabelOperator::DoesNotExist => label.is_none(),
            }
        })
}

/// A Secret and where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretReference {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Secret; absent: that of the sink. Another namespace needs the operator's allow-list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
}

/// An object by name and namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamespacedRef {
    /// Name of the object.
    #[schemars(length(max = 253), extend("x-kubernetes-validations" = rules(&[
        (
            "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
            "must be the name of an object: lower-case letters, digits, - and . (a namespace goes into namespace)",
        ),
    ])))]
    pub name: String,
    /// Namespace of the object.
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = rules(&[
        (
            "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "must be the name of a namespace: lower-case letters, digits and -",
        ),
    ])))]
    pub namespace: String,
}

/// State of one aspect of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Aspect that the condition is about.
    #[serde(rename = "type")]
    #[schemars(
        length(max = 316),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
        )
    )]
    pub type_: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, as one word for machines.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
    pub reason: String,
    /// Why, for people.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// When `status` last changed.
    pub last_transition_time: Time,
    /// Generation of the object that the condition describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Whether it holds is not known.
    Unknown,
}

/// Whether a text can be the name of a namespace. What is put into a URL must have passed this.
pub fn is_namespace_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The longest interval that a manifest may ask for.
pub const MAX_INTERVAL: Duration = Duration::from_hours(24);

/// A duration in the notation of Go (`300ms`, `1h30m`, `0s`), at most 24 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// Units in the order in which Go prints them.
const UNITS: [(&str, f64); 7] =
    [("h", 3600e9), ("m", 60e9), ("s", 1e9), ("ms", 1e6), ("us", 1e3), ("µs", 1e3), ("ns", 1.0)];

impl GoDuration {
    /// Reads Go's notation without a sign; negative durations have no use here.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "0" {
            return Some(Self(Duration::ZERO));
        }
        let mut nanos = 0.0;
        let mut rest = text;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let (number, tail) = rest.split_at_checked(digits)?;
            let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, tail) = tail.split_at_checked(unit_len)?;
            let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
            nanos += number.parse::<f64>().ok()? * scale;
            rest = tail;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "no sign was read, and a float above u64 saturates far beyond 24 h"
        )]
        (!text.is_empty()).then_some(Self(Duration::from_nanos(nanos as u64)))
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        let (hours, minutes, seconds) = (secs / 3600, secs / 60 % 60, secs % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if secs >= 60 {
            write!(f, "{minutes}m")?;
        }
        match nanos {
            0 => write!(f, "{seconds}s"),
            _ if secs == 0 && nanos % 1_000_000 == 0 => write!(f, "{}ms", nanos / 1_000_000),
            _ => {
                let fraction = format!("{nanos:09}");
                write!(f, "{seconds}.{}s", fraction.trim_end_matches('0'))
            }
        }
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom(format!("{text:?} is not a duration; write for example 30s, 5m or 1h30m"))
        })
    }
}

impl JsonSchema for GoDuration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 64,
            "x-kubernetes-validations": rules(&[
                (
                    "self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$')",
                    "must be a duration without sign, such as 30s, 5m or 1h30m",
                ),
                (
                    "!self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+)$') || duration(self) <= duration('24h')",
                    "must be at most 24h",
                ),
            ]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_like_go() {
        for (text, millis, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("300ms", 300, "300ms"),
            ("1.5h", 5_400_000, "1h30m0s"),
            ("1h30m", 5_400_000, "1h30m0s"),
            ("90s", 90_000, "1m30s"),
            ("1s500ms", 1_500, "1.5s"),
        ] {
            let parsed = GoDuration::parse(text).unwrap();
            assert_eq!(parsed.0, Duration::from_millis(millis), "{text}");
            assert_eq!(parsed.to_string(), printed, "{text}");
        }
        for text in ["", "5", "s", "-1s", "1d", "1 s", "1.s.", "1h 2m"] {
            assert_eq!(GoDuration::parse(text), None, "{text}");
        }
    }

    #[test]
    fn label_terms_select_as_in_kubernetes() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let term = |operator, values: &[&str]| LabelSelector {
            match_expressions: vec![LabelRequirement {
                key: "app".into(),
                operator,
                values: values.iter().map(ToString::to_string).collect(),
            }],
            ..Default::default()
        };
        assert!(term(LabelOperator::In, &["web", "api"]).matches(&labels));
        assert!(!term(LabelOperator::In, &["api"]).matches(&labels));
        assert!(term(LabelOperator::NotIn, &["api"]).matches(&labels));
        assert!(!term(LabelOperator::NotIn, &["web"]).matches(&labels));
        assert!(term(LabelOperator::Exists, &[]).matches(&labels));
        assert!(!term(LabelOperator::DoesNotExist, &[]).matches(&labels));
        assert!(LabelSelector::default().matches(&labels));
        assert!(term(LabelOperator::NotIn, &["api"]).matches(&BTreeMap::new()), "absent is not in");
    }
}
