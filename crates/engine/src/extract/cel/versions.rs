//! Semantic versions: `semver('1.2.3')`, `isSemver()` and what can be asked about them, as in Kubernetes.

use std::{any::Any, cmp::Ordering};

use cel::{
    ExecutionError,
    common::{
        types::{CelBool, CelInt, Type},
        value::{CowVal, StaticVal, Val},
    },
};
use semver::Version;

use super::{
    network::opaque_value,
    operators::{Operands, OperatorResult, boolean, charged_text, mismatch},
};

pub(super) static SEMVER: Type = Type::new_unspecified_type("kubernetes.Semver");

#[derive(Clone, Debug)]
pub(super) struct SemanticVersion(pub(super) Version);

impl PartialEq for SemanticVersion {
    /// The build is not compared.
    fn eq(&self, other: &Self) -> bool {
        self.0.cmp_precedence(&other.0) == Ordering::Equal
    }
}

opaque_value!(SemanticVersion, SEMVER);

/// The version that a text names. With `normalize` a leading `v`, leading zeros and missing numbers are accepted.
fn parse(text: &str, normalize: bool) -> Result<Version, &'static str> {
    const PROBLEM: &str = "this is not a semantic version, such as 1.2.3";
    if !normalize {
        return Version::parse(text).map_err(|_| PROBLEM);
    }
    let mut numbers: Vec<String> =
        text.strip_prefix('v').unwrap_or(text).splitn(3, '.').map(without_leading_zeros).collect();
    if numbers.len() < 3 && numbers.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("a short version has no pre-release and no build");
    }
    numbers.resize(3, "0".to_owned());
    Version::parse(&numbers.join(".")).map_err(|_| PROBLEM)
}

fn without_leading_zeros(number: &str) -> String {
    let trimmed = number.trim_start_matches('0');
    if number.len() > 1 && !trimmed.starts_with(|c: char| c.is_ascii_digit()) {
        return format!("0{trimmed}");
    }
    if number.len() > 1 { trimmed.to_owned() } else { number.to_owned() }
}

fn argument<'a>(function: &str, args: &'a [CowVal<'_, '_>]) -> Result<(&'a str, bool), ExecutionError> {
    let normalize = match args.get(1) {
        None => Some(false),
        Some(flag) => flag.downcast_ref::<CelBool>().map(|flag| *flag.inner()),
    };
    charged_text(args, 0)?.zip(normalize).ok_or_else(|| mismatch(function, args))
}

pub(super) fn semver<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (text, normalize) = argument("semver", &args)?;
    match parse(text, normalize) {
        Ok(version) => Ok(CowVal::owned(SemanticVersion(version))),
        Err(problem) => Err(ExecutionError::function_error("semver", problem)),
    }
}

pub(super) fn is_semver<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (text, normalize) = argument("isSemver", &args)?;
    Ok(boolean(parse(text, normalize).is_ok()))
}

fn version<'a>(
    function: &str,
    args: &'a [CowVal<'_, '_>],
    index: usize,
) -> Result<&'a Version, ExecutionError> {
    let version = args.get(index).and_then(|value| value.downcast_ref::<SemanticVersion>());
    version.map(|version| &version.0).ok_or_else(|| mismatch(function, args))
}

fn order(function: &str, args: &[CowVal<'_, '_>]) -> Result<Ordering, ExecutionError> {
    Ok(version(function, args, 0)?.cmp_precedence(version(function, args, 1)?))
}

pub(super) fn compare_to<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(CelInt::from(order("compareTo", &args)? as i64)))
}

pub(super) fn is_greater_than<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(order("isGreaterThan", &args)? == Ordering::Greater))
}

pub(super) fn is_less_than<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(order("isLessThan", &args)? == Ordering::Less))
}

fn number<'b, 'v>(number: u64) -> CowVal<'b, 'v> {
    CowVal::owned(CelInt::from(number.cast_signed()))
}

pub(super) fn major<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(number(version("major", &args, 0)?.major))
}

pub(super) fn minor<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(number(version("minor", &args, 0)?.minor))
}

pub(super) fn patch<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(number(version("patch", &args, 0)?.patch))
}
