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
    ("cidr", 1, 1),
    ("double", 1, 1),
    ("duration", 1, 1),
    ("dyn", 1, 1),
    ("format.byte", 0, 0),
    ("format.date", 0, 0),
    ("format.datetime", 0, 0),
    ("format.dns1035Label", 0, 0),
    ("format.dns1035LabelPrefix", 0, 0),
    ("format.dns1123Label", 0, 0),
    ("format.dns1123LabelPrefix", 0, 0),
    ("format.dns1123Subdomain", 0, 0),
    ("format.dns1123SubdomainPrefix", 0, 0),
    ("format.labelValue", 0, 0),
    ("format.named", 1, 1),
    ("format.qualifiedName", 0, 0),
    ("format.uri", 0, 0),
    ("format.uuid", 0, 0),
    ("has", 1, 1),
    ("int", 1, 1),
    ("ip", 1, 1),
    ("ip.isCanonical", 1, 1),
    ("isCIDR", 1, 1),
    ("isIP", 1, 1),
    ("isQuantity", 1, 1),
    ("isSemver", 1, 2),
    ("isURL", 1, 1),
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
    ("optional.unwrap", 1, 1),
    ("quantity", 1, 1),
    ("regex.extract", 2, 2),
    ("regex.extractAll", 2, 2),
    ("regex.replace", 3, 4),
    ("semver", 1, 2),
    ("sets.contains", 2, 2),
    ("sets.equivalent", 2, 2),
    ("sets.intersects", 2, 2),
    ("sign", 1, 1),
    ("size", 1, 1),
    ("string", 1, 1),
    ("strings.quote", 1, 1),
    ("timestamp", 1, 1),
    ("type", 1, 1),
    ("uint", 1, 1),
    ("url", 1, 1),
];

/// Functions that are called on a value: name, fewest and most arguments without the value.
pub(super) const METHODS: &[(&str, usize, usize)] = &[
    ("add", 1, 1),
    ("all", 2, 3),
    ("asApproximateFloat", 0, 0),
    ("asInteger", 0, 0),
    ("charAt", 1, 1),
    ("compareTo", 1, 1),
    ("contains", 1, 1),
    ("containsCIDR", 1, 1),
    ("containsIP", 1, 1),
    ("distinct", 0, 0),
    ("endsWith", 1, 1),
    ("exists", 2, 3),
    ("existsOne", 2, 3),
    ("exists_one", 2, 3),
    ("family", 0, 0),
    ("filter", 2, 2),
    ("find", 1, 1),
    ("findAll", 1, 2),
    ("first", 0, 0),
    ("flatten", 0, 1),
    ("format", 1, 1),
    ("getDate", 0, 1),
    ("getDayOfMonth", 0, 1),
    ("getDayOfWeek", 0, 1),
    ("getDayOfYear", 0, 1),
    ("getEscapedPath", 0, 0),
    ("getFullYear", 0, 1),
    ("getHost", 0, 0),
    ("getHostname", 0, 0),
    ("getHours", 0, 1),
    ("getMilliseconds", 0, 1),
    ("getMinutes", 0, 1),
    ("getMonth", 0, 1),
    ("getPort", 0, 0),
    ("getQuery", 0, 0),
    ("getScheme", 0, 0),
    ("getSeconds", 0, 1),
    ("hasValue", 0, 0),
    ("indexOf", 1, 2),
    ("ip", 0, 0),
    ("isGlobalUnicast", 0, 0),
    ("isGreaterThan", 1, 1),
    ("isInteger", 0, 0),
    ("isLessThan", 1, 1),
    ("isLinkLocalMulticast", 0, 0),
    ("isLinkLocalUnicast", 0, 0),
    ("isLoopback", 0, 0),
    ("isSorted", 0, 0),
    ("isUnspecified", 0, 0),
    ("join", 0, 1),
    ("last", 0, 0),
    ("lastIndexOf", 1, 2),
    ("lowerAscii", 0, 0),
    ("major", 0, 0),
    ("map", 2, 3),
    ("masked", 0, 0),
    ("matches", 1, 1),
    ("max", 0, 0),
    ("min", 0, 0),
    ("minor", 0, 0),
    ("optFlatMap", 2, 2),
    ("optMap", 2, 2),
    ("or", 1, 1),
    ("orValue", 1, 1),
    ("patch", 0, 0),
    ("prefixLength", 0, 0),
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
    ("transformList", 3, 4),
    ("transformMap", 3, 4),
    ("transformMapEntry", 3, 4),
    ("trim", 0, 0),
    ("unwrapOpt", 0, 0),
    ("upperAscii", 0, 0),
    ("validate", 1, 1),
    ("value", 0, 0),
];

/// Functions of Kubernetes that are not available: those of the authorizer, which needs a user who asks, and of JSON patches.
const UNAVAILABLE: &str = "
    allowed check error errored escapeKey fieldSelector getExt group hasExt labelSelector name namespace path reason resource
    serviceAccount subresource";

/// Namespaces of functions that are not available.
const UNAVAILABLE_NAMESPACES: &[&str] = &["jsonpatch", "proto", "authorizer"];

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
pub(crate) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let lower = name.to_lowercase();
    let allowed = if name.len() < 5 { 1 } else { 2 };
    known
        .map(|known| (strsim::osa_distance(&lower, &known.to_lowercase()), known))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}
