//! Kubernetes quantities: `quantity('1.5Gi')`, `isQuantity()` and what can be done with one.
//!
//! `functions` declares them. A quantity is exact: a decimal number of up to 500 digits and the kind of
//! suffix it was written with. Finer than nano is rounded away from zero, and a binary quantity ends at
//! 2^63-1, as `resource.Quantity` of Kubernetes has it. Unlike there, `isInteger` and `asInteger` depend
//! on the value alone: 1.5Gi and 1000m are integers.

use std::{any::Any, cmp::Ordering};

use cel::{
    ExecutionError,
    common::{
        types::{CelBool, CelDouble, CelInt, Type},
        value::{CowVal, StaticVal, Val},
    },
};

use num_bigint::{BigInt, Sign};

use super::{
    meter,
    operators::{Operands, OperatorResult, mismatch, text_at},
};

/// The type's name, as `type(x)` has it.
pub(super) static QUANTITY: Type = Type::new_unspecified_type("kubernetes.Quantity");

/// Exponent of the finest quantity.
const NANO: i32 = -9;

/// The largest exponent; `quantity('1e99999')` is refused.
const MAX_EXPONENT: i32 = 1000;

/// The most digits that are read.
const MAX_DIGITS: usize = 500;

const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// How a quantity is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuantityFormat {
    Decimal,
    Exponent,
    Binary,
}

/// `mantissa` times ten to the `exponent`; the mantissa does not end in zero, unless it is zero.
#[derive(Clone, Debug)]
pub(super) struct Quantity {
    mantissa: BigInt,
    exponent: i32,
    format: QuantityFormat,
}

impl Quantity {
    fn new(mantissa: impl Into<BigInt>, exponent: i32, format: QuantityFormat) -> Self {
        let mantissa = mantissa.into();
        if mantissa.sign() == Sign::NoSign {
            return Self { mantissa, exponent: 0, format };
        }
        let text = mantissa.to_string();
        let zeros = narrow(text.len() - text.trim_end_matches('0').len());
        let mantissa = if zeros == 0 { mantissa } else { mantissa / ten_to(zeros) };
        Self { mantissa, exponent: exponent + zeros.cast_signed(), format }
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        const NUMBER: &str = "a quantity is a number with a suffix, such as 500m, 2, 1.5Gi or 12e6";
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{integer}{fraction}");
        if digits.is_empty() || fraction.contains('.') {
            return Err(NUMBER);
        }
        let too_long = "the quantity has more than 500 digits";
        if digits.len() > MAX_DIGITS {
            return Err(too_long);
        }
        let mut mantissa: BigInt = digits.parse().map_err(|_| NUMBER)?;
        let mut exponent = -i32::try_from(fraction.len()).map_err(|_| too_long)?;
        let mut format = QuantityFormat::Decimal;
        if let Some(power) = BINARY.iter().skip(1).position(|known| *known == suffix) {
            mantissa *= BigInt::from(1024).pow(1 + narrow(power));
            format = QuantityFormat::Binary;
        } else if let Some((_, power)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
            exponent += power;
        } else if let Some(power) = suffix.strip_prefix(['e', 'E']) {
            let power: i32 = power.parse().map_err(|_| NUMBER)?;
            if power.abs() > MAX_EXPONENT {
                return Err("the exponent of the quantity is too large");
            }
            exponent += power;
            format = QuantityFormat::Exponent;
        } else {
            return Err(
                "unable to parse quantity's suffix: it is one of n u m k M G T P E Ki Mi Gi Ti Pi Ei",
            );
        }
        let quantity = Self::new(mantissa, exponent, format).rounded().capped();
        Ok(if text.starts_with('-') { quantity.negated() } else { quantity })
    }

    /// Rounds away from zero to nano.
    fn rounded(self) -> Self {
        let Ok(digits) = u32::try_from(NANO - self.exponent) else { return self };
        let unit = ten_to(digits);
        let up = i32::from((&self.mantissa % &unit).sign() != Sign::NoSign);
        Self::new(self.mantissa / unit + up, NANO, self.format)
    }

    fn capped(self) -> Self {
        let limit = Self::new(i64::MAX, 0, QuantityFormat::Binary);
        let one = Self::new(1, 0, QuantityFormat::Binary);
        match self.format {
            QuantityFormat::Binary if self.compare(&limit) == Ordering::Greater => limit,
            QuantityFormat::Binary if self.compare(&one) == Ordering::Less => {
                Self { format: QuantityFormat::Decimal, ..self }
            }
            _ => self,
        }
    }

    /// What it costs to copy or compare it: its digits are made for that.
    pub(super) fn weight(&self) -> u64 {
        1 + self.mantissa.bits() / 64
    }

    fn negated(self) -> Self {
        Self { mantissa: -self.mantissa, ..self }
    }

    fn compare(&self, other: &Self) -> Ordering {
        let sign = self.mantissa.sign();
        if sign != other.mantissa.sign() {
            return sign.cmp(&other.mantissa.sign());
        }
        // Same sign: the one with more digits before the point is larger, else the digits decide.
        let (a, b) = (self.mantissa.magnitude().to_string(), other.mantissa.magnitude().to_string());
        let order = (narrow(a.len()).cast_signed() + self.exponent)
            .cmp(&(narrow(b.len()).cast_signed() + other.exponent))
            .then_with(|| a.cmp(&b));
        if sign == Sign::Minus { order.reverse() } else { order }
    }

    /// The sum; it is written like the first one, unless that is zero.
    fn plus(&self, other: &Self) -> Self {
        let exponent = self.exponent.min(other.exponent);
        let scaled = |quantity: &Self| {
            let zeros = u32::try_from(quantity.exponent - exponent).unwrap_or_default();
            &quantity.mantissa * ten_to(zeros)
        };
        let format = if self.mantissa.sign() == Sign::NoSign { other.format } else { self.format };
        Self::new(scaled(self) + scaled(other), exponent, format)
    }

    fn integer(&self) -> Option<i64> {
        // More zeros than this do not fit an integer, unless the number is zero.
        let zeros = u32::try_from(self.exponent).ok().filter(|zeros| *zeros <= 19)?;
        i64::try_from(&self.mantissa * ten_to(zeros)).ok()
    }

    fn float(&self) -> f64 {
        format!("{}e{}", self.mantissa, self.exponent).parse().unwrap_or(f64::NAN)
    }

    /// The text that Kubernetes writes: no fraction, the largest suffix.
    pub(super) fn canonical(&self) -> String {
        if self.format == QuantityFormat::Binary
            && let Some(mut number) = self.integer().filter(|number| number.unsigned_abs() >= 1024)
        {
            let mut power = 0;
            while number % 1024 == 0 && power + 1 < BINARY.len() {
                number /= 1024;
                power += 1;
            }
            return format!("{number}{}", BINARY[power]);
        }
        let thousands = self.exponent.div_euclid(3) * 3;
        let zeros = usize::try_from(self.exponent - thousands).unwrap_or_default();
        let number = format!("{}{}", self.mantissa, "0".repeat(zeros));
        let suffix = DECIMAL.iter().find(|(_, power)| *power == thousands);
        match suffix {
            _ if thousands == 0 => number,
            Some((suffix, _)) if self.format != QuantityFormat::Exponent => format!("{number}{suffix}"),
            _ => format!("{number}e{thousands}"),
        }
    }
}

fn ten_to(zeros: u32) -> BigInt {
    BigInt::from(10).pow(zeros)
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("digits and suffixes are few")
}

impl Val for Quantity {
    fn get_type(&self) -> &Type {
        &QUANTITY
    }

    fn cel_type() -> &'static Type {
        &QUANTITY
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| self.compare(other) == Ordering::Equal)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Quantity {}

pub(super) fn quantity<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let text = text_at(&args, 0).unwrap_or_default();
    meter::spend(8 + meter::text_weight(text.len()))?;
    match Quantity::parse(text) {
        Ok(quantity) => Ok(CowVal::owned(quantity)),
        Err(problem) => Err(ExecutionError::function_error("quantity", problem)),
    }
}

/// Whether a text is a quantity.
pub(crate) fn is_valid(text: &str) -> bool {
    Quantity::parse(text).is_ok()
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of a function of CEL")]
pub(super) fn is_quantity<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(CelBool::from(Quantity::parse(text_at(&args, 0).unwrap_or_default()).is_ok())))
}

/// The quantity a function is called on; overloads are only found for one.
fn receiver<'a>(args: &'a [CowVal<'_, '_>], function: &str) -> Result<&'a Quantity, ExecutionError> {
    args.first().and_then(|value| value.downcast_ref::<Quantity>()).ok_or_else(|| mismatch(function, args))
}

/// The other quantity, or the integer that stands for one.
fn operand(args: &[CowVal<'_, '_>], function: &str) -> Result<Quantity, ExecutionError> {
    let other = args.get(1).ok_or_else(|| mismatch(function, args))?;
    match (other.downcast_ref::<Quantity>(), other.downcast_ref::<CelInt>()) {
        (Some(quantity), _) => Ok(quantity.clone()),
        (None, Some(int)) => Ok(Quantity::new(*int.inner(), 0, QuantityFormat::Exponent)),
        (None, None) => Err(mismatch(function, args)),
    }
}

pub(super) fn is_integer<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(CelBool::from(receiver(&args, "isInteger")?.integer().is_some())))
}

pub(super) fn as_integer<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let integer = receiver(&args, "asInteger")?.integer();
    let failed = || ExecutionError::function_error("asInteger", "cannot convert value to integer");
    Ok(CowVal::owned(CelInt::from(integer.ok_or_else(failed)?)))
}

pub(super) fn as_approximate_float<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(CelDouble::from(receiver(&args, "asApproximateFloat")?.float())))
}

pub(super) fn sign<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let sign = match receiver(&args, "sign")?.mantissa.sign() {
        Sign::Minus => -1,
        Sign::NoSign => 0,
        Sign::Plus => 1,
    };
    Ok(CowVal::owned(CelInt::from(sign)))
}

pub(super) fn add<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    sum(&args, "add", |other| other)
}

pub(super) fn sub<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    sum(&args, "sub", Quantity::negated)
}

fn sum<'b, 'v>(
    args: &[CowVal<'_, '_>],
    function: &str,
    signed: impl Fn(Quantity) -> Quantity,
) -> OperatorResult<'b, 'v> {
    let (quantity, other) = (receiver(args, function)?, signed(operand(args, function)?));
    // Exponents that differ are written out.
    meter::spend(64 + quantity.weight() + other.weight())?;
    Ok(CowVal::owned(quantity.plus(&other)))
}

fn order(args: &[CowVal<'_, '_>], function: &str) -> Result<Ordering, ExecutionError> {
    let other = args.get(1).and_then(|other| other.downcast_ref::<Quantity>());
    let (quantity, other) = (receiver(args, function)?, other.ok_or_else(|| mismatch(function, args))?);
    meter::spend(quantity.weight() + other.weight())?;
    Ok(quantity.compare(other))
}

pub(super) fn compare_to<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(CelInt::from(order(&args, "compareTo")? as i64)))
}

pub(super) fn is_greater_than<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(CelBool::from(order(&args, "isGreaterThan")? == Ordering::Greater)))
}

pub(super) fn is_less_than<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(CelBool::from(order(&args, "isLessThan")? == Ordering::Less)))
}
