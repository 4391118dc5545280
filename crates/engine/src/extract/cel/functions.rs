//! The functions that an expression can call, as `cel` knows them.
//!
//! [`env()`] declares the standard library, the extensions of `cel`, our macros and our functions. Most of ours have
//! names that cannot be written in an expression (`@replace`): `rewrite` replaces calls by our functions as
//! [`REPLACEMENTS`] lists them, so that no unbounded function of `cel` is ever called.

mod macros;

use std::sync::{Arc, LazyLock};

use cel::{
    Env,
    common::{
        functions::Function,
        types::{DYN_TYPE, STRING_TYPE, Type},
    },
    extensions,
};

use super::{
    convert, entries, lists, named_formats,
    network::{self, CIDR, IP},
    operators::{self, Operands, OperatorResult, mismatch},
    optionals, patterns,
    quantity::{self, QUANTITY},
    texts, times,
    urls::{self, URL},
    versions::{self, SEMVER},
};

/// The function that the macro `sortBy` of `cel` expands to.
const SORT_BY: &str = "@sortByAssociatedKeys";

/// Calls that are replaced: name, name of our function, numbers of arguments with the receiver, function. Calls with another number
/// of arguments are left to `cel`.
const REPLACEMENTS: &[(&str, &str, &[usize], Function)] = &[
    ("cidr", "@cidr", &[1], network::cidr),
    ("distinct", "@distinct", &[1], lists::distinct),
    ("duration", "@duration", &[1], times::duration),
    ("find", "@find", &[2], patterns::find),
    ("findAll", "@findAll", &[2, 3], patterns::find_all),
    ("first", "@first", &[1], optionals::first),
    ("flatten", "@flatten", &[1, 2], lists::flatten),
    ("format.named", "@format.named", &[1], named_formats::named),
    ("getDate", "@getDate", &[1], times::get_date),
    ("getDayOfMonth", "@getDayOfMonth", &[1], times::get_day_of_month),
    ("getDayOfWeek", "@getDayOfWeek", &[1], times::get_day_of_week),
    ("getDayOfYear", "@getDayOfYear", &[1], times::get_day_of_year),
    ("getFullYear", "@getFullYear", &[1], times::get_full_year),
    ("getHours", "@getHours", &[1], times::get_hours),
    ("getMilliseconds", "@getMilliseconds", &[1], times::get_milliseconds),
    ("getMinutes", "@getMinutes", &[1], times::get_minutes),
    ("getMonth", "@getMonth", &[1], times::get_month),
    ("getSeconds", "@getSeconds", &[1], times::get_seconds),
    ("indexOf", "@indexOf", &[2, 3], texts::index_of),
    ("int", "@int", &[1], convert::int),
    ("ip", "@ip", &[1], network::ip),
    ("ip.isCanonical", "@ip.isCanonical", &[1], network::is_canonical),
    ("isCIDR", "@isCIDR", &[1], network::is_cidr),
    ("isIP", "@isIP", &[1], network::is_ip),
    ("isSemver", "@isSemver", &[1, 2], versions::is_semver),
    ("isSorted", "@isSorted", &[1], lists::is_sorted),
    ("isURL", "@isURL", &[1], urls::is_url),
    ("join", "@join", &[1, 2], texts::join),
    ("last", "@last", &[1], optionals::last),
    ("lastIndexOf", "@lastIndexOf", &[2, 3], texts::last_index_of),
    ("lists.range", "@lists.range", &[1], lists::range),
    ("matches", "@matches", &[2], patterns::matches),
    ("max", "@max", &[1], lists::max),
    ("min", "@min", &[1], lists::min),
    ("optional.ofNonZeroValue", "@ofNonZeroValue", &[1], optionals::of_non_zero_value),
    ("optional.unwrap", "@unwrap", &[1], optionals::unwrap),
    ("regex.extract", "@regex.extract", &[2], patterns::extract),
    ("regex.extractAll", "@regex.extractAll", &[2], patterns::extract_all),
    ("regex.replace", "@regex.replace", &[3, 4], patterns::replace),
    ("replace", "@replace", &[3, 4], texts::replace),
    ("reverse", "@reverse", &[1], texts::reverse),
    ("semver", "@semver", &[1, 2], versions::semver),
    ("sets.contains", "@sets.contains", &[2], entries::sets_contains),
    ("sets.equivalent", "@sets.equivalent", &[2], entries::sets_equivalent),
    ("sets.intersects", "@sets.intersects", &[2], entries::sets_intersects),
    ("slice", "@slice", &[3], lists::slice),
    ("sort", "@sort", &[1], lists::sort),
    (SORT_BY, "@sortBy", &[2], lists::sort_by_keys),
    ("split", "@split", &[2, 3], texts::split),
    ("string", "@string", &[1], convert::string),
    ("sum", "@sum", &[1], lists::sum),
    ("timestamp", "@timestamp", &[1], times::timestamp),
    ("uint", "@uint", &[1], convert::uint),
    ("unwrapOpt", "@unwrapOpt", &[1], optionals::unwrap),
    ("url", "@url", &[1], urls::url),
];

/// What `lower` and `rewrite` put into an expression.
const GUARDS: &[(&str, &[usize], Function)] = &[
    ("@entries", &[1], entries::entries),
    ("@failed", &[0], optionals::failed),
    ("@false", &[1], optionals::is_false),
    ("@format", &[1], named_formats::of_name),
    ("@has", &[2], optionals::has),
    ("@has_value", &[2], optionals::has_value),
    ("@map_of", &[1], entries::map_of),
    ("@merged", &[1], entries::merged),
    ("@plain", &[1], operators::plain),
    ("@used", &[2], optionals::used),
    ("@value", &[1], optionals::value),
    ("@root", &[1], operators::root),
    ("@tick", &[1], operators::tick),
    ("@copied", &[1], operators::copied),
    ("@looked_at", &[1], operators::looked_at),
    ("@range", &[1], operators::range),
    ("@key", &[1], operators::key),
    ("@optional", &[2, 3, 4, 5, 6, 7, 8, 9], operators::optional),
    ("@selected", &[2], operators::selected),
    ("@equal", &[2], operators::equal),
    ("@not_equal", &[2], operators::not_equal),
    ("@contained", &[2], operators::contained),
    ("@less", &[2], operators::less),
    ("@less_equal", &[2], operators::less_equal),
    ("@greater", &[2], operators::greater),
    ("@greater_equal", &[2], operators::greater_equal),
    ("@add", &[2], operators::add),
    ("@subtract", &[2], operators::subtract),
    ("@multiply", &[2], operators::multiply),
    ("@divide", &[2], operators::divide),
    ("@modulo", &[2], operators::modulo),
];

/// The most keys that `@optional` takes.
pub(super) const MAX_OPTIONAL_KEYS: usize = 8;

/// Functions on values of a type of Kubernetes: the type, the name, how many arguments, the function.
static METHODS: &[(&Type, &str, usize, Function)] = &[
    (&QUANTITY, "isInteger", 0, quantity::is_integer),
    (&QUANTITY, "asInteger", 0, quantity::as_integer),
    (&QUANTITY, "asApproximateFloat", 0, quantity::as_approximate_float),
    (&QUANTITY, "sign", 0, quantity::sign),
    (&QUANTITY, "add", 1, quantity::add),
    (&QUANTITY, "sub", 1, quantity::sub),
    (&QUANTITY, "compareTo", 1, quantity::compare_to),
    (&QUANTITY, "isGreaterThan", 1, quantity::is_greater_than),
    (&QUANTITY, "isLessThan", 1, quantity::is_less_than),
    (&SEMVER, "compareTo", 1, versions::compare_to),
    (&SEMVER, "isGreaterThan", 1, versions::is_greater_than),
    (&SEMVER, "isLessThan", 1, versions::is_less_than),
    (&SEMVER, "major", 0, versions::major),
    (&SEMVER, "minor", 0, versions::minor),
    (&SEMVER, "patch", 0, versions::patch),
    (&URL, "getEscapedPath", 0, urls::get_escaped_path),
    (&URL, "getHost", 0, urls::get_host),
    (&URL, "getHostname", 0, urls::get_hostname),
    (&URL, "getPort", 0, urls::get_port),
    (&URL, "getQuery", 0, urls::get_query),
    (&URL, "getScheme", 0, urls::get_scheme),
    (&IP, "family", 0, network::family),
    (&IP, "isGlobalUnicast", 0, network::is_global_unicast),
    (&IP, "isLinkLocalMulticast", 0, network::is_link_local_multicast),
    (&IP, "isLinkLocalUnicast", 0, network::is_link_local_unicast),
    (&IP, "isLoopback", 0, network::is_loopback),
    (&IP, "isUnspecified", 0, network::is_unspecified),
    (&CIDR, "containsCIDR", 1, network::contains_cidr),
    (&CIDR, "containsIP", 1, network::contains_ip),
    (&CIDR, "masked", 0, network::masked),
    (&CIDR, "prefixLength", 0, network::prefix_length),
    (&named_formats::FORMAT, "validate", 1, named_formats::validate),
];

/// The name of our function for a call of this name with this many arguments, the receiver included.
pub(super) fn replacement(name: &str, arguments: usize) -> Option<&'static str> {
    let fits = |(known, _, arities, _): &&(&str, &'static str, &[usize], Function)| {
        *known == name && arities.contains(&arguments)
    };
    REPLACEMENTS.iter().find(fits).map(|(_, replacement, ..)| *replacement)
}

/// What the function of the standard library of `cel` gives.
pub(super) fn call_standard<'b, 'v>(name: &str, args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    match env().find_overload(name, &args) {
        Some(function) => function(args),
        None => Err(mismatch(name, &args)),
    }
}

/// The environment of every expression.
pub(super) fn env() -> &'static Arc<Env> {
    static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(build()));
    &ENV
}

fn build() -> Env {
    const ONCE: &str = "every name is declared once";
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings).expect(ONCE);
    env.add_extension(extensions::lists).expect(ONCE);
    env.add_extension(extensions::math).expect(ONCE);
    env.add_extension(extensions::encoders).expect(ONCE);
    for expanded in macros::all() {
        env.add_macro(expanded).expect(ONCE);
    }
    let replacements = REPLACEMENTS.iter().map(|(_, name, arities, function)| (name, arities, function));
    for (name, arities, function) in
        replacements.chain(GUARDS.iter().map(|(name, arities, f)| (name, arities, f)))
    {
        for arity in *arities {
            let types = std::iter::repeat_with(|| DYN_TYPE).take(*arity).collect();
            env.add_overload(name, &format!("{name}_{arity}"), types, *function).expect(ONCE);
        }
    }
    for known in [&QUANTITY, &SEMVER, &URL] {
        env.add_type(known.to_owned()).expect(ONCE);
    }
    env.add_overload("quantity", "string_to_quantity", vec![STRING_TYPE], quantity::quantity).expect(ONCE);
    env.add_overload("isQuantity", "is_quantity_string", vec![STRING_TYPE], quantity::is_quantity)
        .expect(ONCE);
    env.add_overload("sign", "sign_quantity", vec![QUANTITY.to_owned()], quantity::sign).expect(ONCE);
    for (receiver, name, arity, function) in METHODS.iter().copied() {
        let types = std::iter::repeat_with(|| DYN_TYPE).take(arity).collect();
        let id = format!("{}_{name}", receiver.name());
        env.add_member_overload(name, &id, receiver.to_owned(), types, function).expect(ONCE);
    }
    env
}
