//! The names that an expression may use, and those it may not. `check` uses them.
//!
//! Every function that `functions` declares or `cel` brings is listed here with its numbers of
//! arguments; a test compares the list with what can be called.

/// Functions that are called without a receiver: name, fewest and most arguments.
pub(super) const FUNCTIONS: &[(&str, usize, usize)] = &[
    ("base64.decode", 1, 1),
    ("base64.encode", 1, 1),
    ("bool", 1, 1),
    ("bytes", 1, 1),
    ("cel.bind", 3, 3),
    ("double", 1, 1),
    ("duration", 1, 1),
    ("dyn", 1, 1),
    ("has", 1, 1),
    ("int", 1, 1),
    ("isQuantity", 1, 1),
    ("lists.range", 1, 1),
    ("matches", 2, 2),
    ("math.abs", 1, 1),
    ("math.bitAnd", 2, 2),
    ("math.bitNot", 1, 1),
    ("math.bitOr", 2, 2),
    ("math.bitShiftLeft", 2, 2),
    ("math.bitShiftRight", 2, 2),
    ("math.bitXor", 2, 2),
    ("math.ceil", 1, 1),
    ("math.floor", 1, 1),
    ("math.greatest", 1, usize::MAX),
    ("math.isFinite", 1, 1),
    ("math.isInf", 1, 1),
    ("math.isNaN", 1, 1),
    ("math.least", 1, usize::MAX),
    ("math.round", 1, 1),
    ("math.sign", 1, 1),
    ("math.sqrt", 1, 1),
    ("math.trunc", 1, 1),
    ("optional.none", 0, 0),
    ("optional.of", 1, 1),
    ("optional.ofNonZeroValue", 1, 1),
    ("quantity", 1, 1),
    ("sign", 1, 1),
    ("size", 1, 1),
    ("string", 1, 1),
    ("strings.quote", 1, 1),
    ("timestamp", 1, 1),
    ("type", 1, 1),
    ("uint", 1, 1),
];

/// Functions that are called on a value: name, fewest and most arguments without the value.
pub(super) const METHODS: &[(&str, usize, usize)] = &[
    ("add", 1, 1),
    ("all", 2, 2),
    ("asApproximateFloat", 0, 0),
    ("asInteger", 0, 0),
    ("charAt", 1, 1),
    ("compareTo", 1, 1),
    ("contains", 1, 1),
    ("distinct", 0, 0),
    ("endsWith", 1, 1),
    ("exists", 2, 2),
    ("existsOne", 2, 2),
    ("exists_one", 2, 2),
    ("filter", 2, 2),
    ("find", 1, 1),
    ("findAll", 1, 2),
    ("flatten", 0, 1),
    ("format", 1, 1),
    ("getDate", 0, 1),
    ("getDayOfMonth", 0, 1),
    ("getDayOfWeek", 0, 1),
    ("getDayOfYear", 0, 1),
    ("getFullYear", 0, 1),
    ("getHours", 0, 1),
    ("getMilliseconds", 0, 1),
    ("getMinutes", 0, 1),
    ("getMonth", 0, 1),
    ("getSeconds", 0, 1),
    ("hasValue", 0, 0),
    ("indexOf", 1, 2),
    ("isGreaterThan", 1, 1),
    ("isInteger", 0, 0),
    ("isLessThan", 1, 1),
    ("isSorted", 0, 0),
    ("join", 0, 1),
    ("lastIndexOf", 1, 2),
    ("lowerAscii", 0, 0),
    ("map", 2, 3),
    ("matches", 1, 1),
    ("max", 0, 0),
    ("min", 0, 0),
    ("optFlatMap", 2, 2),
    ("optMap", 2, 2),
    ("or", 1, 1),
    ("orValue", 1, 1),
    ("replace", 2, 3),
    ("reverse", 0, 0),
    ("sign", 0, 0),
    ("size", 0, 0),
    ("slice", 2, 2),
    ("sort", 0, 0),
    ("sortBy", 2, 2),
    ("split", 1, 2),
    ("startsWith", 1, 1),
    ("sub", 1, 1),
    ("substring", 1, 2),
    ("sum", 0, 0),
    ("trim", 0, 0),
    ("upperAscii", 0, 0),
    ("value", 0, 0),
];

/// Functions of Kubernetes and of CEL's extensions that are not available.
const UNAVAILABLE: &str = "
    allowed check cidr containsCIDR containsIP div divInt equivalent error errored escapeKey family
    fieldSelector first getEscapedPath getExt getHost getHostname getPort getQuery getScheme group
    hasExt includes intersects ip isCanonical isCIDR isGlobalUnicast isIP isLinkLocalMulticast
    isLinkLocalUnicast isLoopback isSemver isUnspecified isURL labelSelector last major masked minor mul
    name named namespace patch path prefixLength reason resource semver serviceAccount subresource
    transformList transformMap transformMapEntry unwrap unwrapOpt url validate";

/// Namespaces of functions that are not available.
const UNAVAILABLE_NAMESPACES: &[&str] =
    &["sets", "ip", "format", "jsonpatch", "regex", "proto", "authorizer"];

/// Variables of Kubernetes that are not available.
pub(super) const UNAVAILABLE_VARIABLES: &[&str] =
    &["authorizer", "request", "oldObject", "params", "variables", "self", "oldSelf"];

/// Variable of the object.
pub(super) const OBJECT: &str = "object";
/// Variable of the object's namespace.
pub(super) const NAMESPACE: &str = "namespaceObject";

/// Whether names of types with dots begin like this, as in `google.protobuf.Timestamp`.
pub(super) fn is_type_root(name: &str) -> bool {
    ["google", "kubernetes"].contains(&name.trim_start_matches('.'))
}

/// Whether Kubernetes has the function, but Kollect has not. The name includes its namespace, if that was written.
pub(super) fn is_unavailable(name: &str) -> bool {
    match name.split_once('.') {
        Some((namespace, _)) => UNAVAILABLE_NAMESPACES.contains(&namespace),
        None => UNAVAILABLE.split_whitespace().any(|known| known == name),
    }
}

/// The known name that a misspelt one most likely means.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let lower = name.to_lowercase();
    let allowed = if name.len() < 5 { 1 } else { 2 };
    known
        .map(|known| (strsim::osa_distance(&lower, &known.to_lowercase()), known))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}
