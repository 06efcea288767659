//! Typed reading of a JSON object's fields, with errors that name them. A field that is `null` counts as absent.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// What a value is, for messages.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// The error for a field of another type.
pub(crate) fn wrong_type(name: &str, expected: &str, value: &Value) -> ApiError {
    ApiError::field(name, format!("must be {expected}, not {}", kind(value)))
}

pub(crate) struct Fields<'a>(pub(crate) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.get(name).map(|v| read(v).ok_or_else(|| wrong_type(name, expected, v))).transpose()
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.typed(name, "an array", Value::as_array)
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A whole number, `low` or more.
    pub(crate) fn integer(&self, name: &str, low: i64) -> Result<Option<i64>, ApiError> {
        let Some(n) = self.typed(name, "a whole number", Value::as_i64)? else { return Ok(None) };
        if n < low {
            return Err(ApiError::field(name, format!("must be at least {low}, not {n}")));
        }
        Ok(Some(n))
    }

    /// A number for which `inside` holds; `range` says which those are.
    pub(crate) fn number(
        &self,
        name: &str,
        range: &str,
        inside: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ApiError> {
        let Some(x) = self.typed(name, "a number", Value::as_f64)? else { return Ok(None) };
        if !inside(x) {
            return Err(ApiError::field(name, format!("must be {range}, not {x}")));
        }
        Ok(Some(x))
    }

    /// Refuse a field unless it is absent or holds the value that changes nothing.
    pub(crate) fn only(&self, name: &str, neutral: &str, is_neutral: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !is_neutral(value) => {
                Err(ApiError::unsupported(name, format!("is not supported yet; leave it out or send {neutral}")))
            }
            _ => Ok(()),
        }
    }
}
