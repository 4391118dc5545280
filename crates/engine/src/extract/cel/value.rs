//! Values in and out: JSON to CEL without copying texts, CEL to plain JSON.
//!
//! `CelVariables` and `Expression::evaluate` use these. Integers that fit an `int` become one, every other
//! number a `double` (so that `object.spec.replicas + 1` works); one that only passes through keeps its digits.

use std::{borrow::Cow, collections::HashMap};

use cel::common::{
    types::{
        CelBool, CelBytes, CelDouble, CelDuration, CelInt, CelList, CelMap, CelMapKey, CelNull, CelOptional,
        CelString, CelTimestamp, CelType, CelUInt,
    },
    value::{CowVal, Val},
};

use super::{
    EvalError, convert,
    exact::ExactNumber,
    functions,
    network::{IpAddress, IpNetwork},
    quantity::Quantity,
    redacted::RedactedValue,
    urls::Url,
    versions::SemanticVersion,
};
use crate::json::{Json, JsonMap, Projection, REDACTION_MARKER};

/// Doubles below this are whole without an exponent, as JavaScript and Go write them.
const MAX_PLAIN_DOUBLE: f64 = 1e15;

/// A value that borrows its texts, with what the projection reads of it. `remaining` is how many more values may be made.
pub(super) fn from_json<'a>(
    json: &'a Json<'_>,
    projection: &Projection,
    remaining: &mut u64,
) -> Result<Box<dyn Val + 'a>, EvalError> {
    *remaining = remaining.checked_sub(1).ok_or(EvalError::ObjectTooLarge)?;
    Ok(match json {
        Json::Null => Box::new(CelNull),
        Json::Bool(b) => Box::new(CelBool::from(*b)),
        Json::Number(text) => number(text),
        Json::String(text) => Box::new(CelString::from(&**text)),
        Json::Redacted => Box::new(RedactedValue),
        Json::List(items) => {
            let item = |item| match projection.of_items() {
                Some(each) => from_json(item, each, remaining),
                // Only the number of items matters.
                None => Ok(Box::new(CelNull) as Box<dyn Val + 'a>),
            };
            Box::new(CelList::from(items.iter().map(item).collect::<Result<Vec<_>, _>>()?))
        }
        Json::Map(map) => {
            let read = |(key, value): (&'a str, &'a Json<'_>)| {
                let projection = projection.of_key(key)?;
                Some(from_json(value, &projection, remaining).map(|value| (CelMapKey::from(key), value)))
            };
            let entries: HashMap<CelMapKey<'a>, Box<dyn Val + 'a>> =
                map.iter().filter_map(read).collect::<Result<_, _>>()?;
            Box::new(CelMap::from(entries))
        }
    })
}

fn number<'a>(text: &str) -> Box<dyn Val + 'a> {
    match text.parse::<i64>() {
        Ok(int) => Box::new(CelInt::from(int)),
        Err(_) => {
            // The reader takes any run of digits, signs and dots for a number.
            let double = text.parse::<f64>().unwrap_or(f64::NAN);
            match ExactNumber::of(text, double) {
                Some(exact) => Box::new(exact),
                None => Box::new(CelDouble::from(double)),
            }
        }
    }
}

/// The JSON of a result, which may have this many bytes.
pub(super) fn to_json(value: &dyn Val, max_bytes: usize) -> Result<Json<'static>, EvalError> {
    JsonWriter { remaining: max_bytes }.json(value)
}

struct JsonWriter {
    remaining: usize,
}

impl JsonWriter {
    fn json(&mut self, value: &dyn Val) -> Result<Json<'static>, EvalError> {
        // For a comma or a bracket.
        self.take(1)?;
        if let Some(text) = value.downcast_ref::<CelString>() {
            self.text(text.inner())
        } else if let Some(list) = value.downcast_ref::<CelList>() {
            let items = list.inner().iter().map(|item| self.json(item.as_ref()));
            Ok(Json::List(items.collect::<Result<_, _>>()?))
        } else if let Some(map) = value.downcast_ref::<CelMap>() {
            self.map(map)
        } else if let Some(optional) = value.downcast_ref::<CelOptional>() {
            optional.option().map_or(Ok(Json::Null), |value| self.json(value))
        } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
            if bytes.inner().len() > self.remaining {
                return Err(EvalError::ResultTooLarge);
            }
            self.call("base64.encode", value)
        } else if let Some(quantity) = value.downcast_ref::<Quantity>() {
            self.text(&quantity.canonical())
        } else if let Some(name) = value.downcast_ref::<CelType>() {
            self.text(name.name())
        } else if let Some(exact) = value.downcast_ref::<ExactNumber>() {
            self.take(exact.text.len())?;
            Ok(Json::Number(Cow::Owned(exact.text.to_string())))
        } else if value.downcast_ref::<RedactedValue>().is_some() {
            self.take(REDACTION_MARKER.len())?;
            Ok(Json::Redacted)
        } else if let Some(version) = value.downcast_ref::<SemanticVersion>() {
            self.text(&version.0.to_string())
        } else if let Some(url) = value.downcast_ref::<Url>() {
            self.text(&url.text)
        } else if let Some(text) = opaque_text(value) {
            self.text(&text)
        } else {
            let scalar = scalar(value)?;
            if let Json::Number(text) = &scalar {
                self.take(text.len())?;
            }
            Ok(scalar)
        }
    }

    fn take(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.remaining = self.remaining.checked_sub(bytes).ok_or(EvalError::ResultTooLarge)?;
        Ok(())
    }

    /// Quotes and escapes count.
    fn take_text(&mut self, text: &str) -> Result<(), EvalError> {
        let escapes = text.bytes().map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 1,
            0..0x20 => 5,
            _ => 0,
        });
        self.take(text.len() + 2 + escapes.sum::<usize>())
    }

    fn text(&mut self, text: &str) -> Result<Json<'static>, EvalError> {
        self.take_text(text)?;
        Ok(Json::String(Cow::Owned(text.to_owned())))
    }

    fn map(&mut self, map: &CelMap<'_>) -> Result<Json<'static>, EvalError> {
        let mut entries: Vec<_> = map.inner().iter().collect();
        // `{1: 'a', '1': 'b'}` has one key in JSON: the order decides which value it keeps.
        entries.sort_by(|a, b| a.0.cmp(b.0));
        let mut json = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = match key {
                CelMapKey::Bool(b) => b.inner().to_string(),
                CelMapKey::Int(i) => i.inner().to_string(),
                CelMapKey::UInt(u) => u.inner().to_string(),
                CelMapKey::String(text) => text.inner().to_owned(),
            };
            self.take_text(&key)?;
            json.push((Cow::Owned(key), self.json(value.as_ref())?));
        }
        Ok(Json::Map(json.into_iter().collect::<JsonMap<'_>>()))
    }

    /// What a function of CEL makes of a value.
    fn call(&mut self, function: &str, value: &dyn Val) -> Result<Json<'static>, EvalError> {
        let argument = [CowVal::Borrowed(value)];
        let text = functions::env()
            .find_overload(function, &argument)
            .and_then(|function| function(argument.into()).ok())
            .and_then(|text| text.downcast_ref::<CelString>().map(|text| text.inner().to_owned()));
        match text {
            Some(text) => self.text(&text),
            None => Err(unsupported(value)),
        }
    }
}

/// The text of a time, a duration, an address or a network.
fn opaque_text(value: &dyn Val) -> Option<String> {
    let is_text = value.downcast_ref::<CelTimestamp>().is_some()
        || value.downcast_ref::<CelDuration>().is_some()
        || value.downcast_ref::<IpAddress>().is_some()
        || value.downcast_ref::<IpNetwork>().is_some();
    if is_text { convert::text_of(value).ok().flatten() } else { None }
}

fn scalar(value: &dyn Val) -> Result<Json<'static>, EvalError> {
    if let Some(int) = value.downcast_ref::<CelInt>() {
        Ok(Json::Number(Cow::Owned(int.inner().to_string())))
    } else if let Some(uint) = value.downcast_ref::<CelUInt>() {
        Ok(Json::Number(Cow::Owned(uint.inner().to_string())))
    } else if let Some(double) = value.downcast_ref::<CelDouble>() {
        double_text(*double.inner()).map(|text| Json::Number(Cow::Owned(text)))
    } else if let Some(b) = value.downcast_ref::<CelBool>() {
        Ok(Json::Bool(*b.inner()))
    } else if value.downcast_ref::<CelNull>().is_some() {
        Ok(Json::Null)
    } else {
        Err(unsupported(value))
    }
}

fn double_text(double: f64) -> Result<String, EvalError> {
    if double.fract() == 0.0 && double.abs() < MAX_PLAIN_DOUBLE {
        // Adding zero turns -0 into 0.
        return Ok(format!("{}", double + 0.0));
    }
    match serde_json::Number::from_f64(double) {
        Some(number) => Ok(number.to_string()),
        None => Err(EvalError::NotJson(double.to_string())),
    }
}

fn unsupported(value: &dyn Val) -> EvalError {
    EvalError::NotJson(value.get_type().name().to_owned())
}
