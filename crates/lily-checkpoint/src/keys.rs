//! Reads values out of the JSON objects of config.json and generation_config.json; errors name file and key.

use serde_json::{Map, Value};

use crate::CheckpointError;

/// A JSON object with the file's name, for errors.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub file: &'static str,
    /// `text_config.` inside that object.
    pub prefix: &'static str,
    pub map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    pub fn bad(&self, key: &str, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::Config { file: self.file, key: format!("{}{key}", self.prefix), problem: problem.into() }
    }

    /// The value, where it is there and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(v) => Err(self.bad(key, format!("is {v} and should be an object"))),
        }
    }

    /// A positive integer. `max` is far above anything real; it keeps products of dimensions within 64 bits.
    pub fn size(&self, key: &str, max: u64) -> Result<usize, CheckpointError> {
        let value = self.get(key).ok_or_else(|| self.bad(key, "is missing"))?;
        match value.as_u64() {
            Some(n) if (1..=max).contains(&n) => Ok(n as usize),
            _ => Err(self.bad(key, format!("is {value} and should be an integer from 1 to {max}"))),
        }
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        self.get(key)
            .map(|v| v.as_f64().ok_or_else(|| self.bad(key, format!("is {v} and should be a number"))))
            .transpose()
    }

    /// A number within `low..=high`, or `default` where there is none.
    pub fn ranged(&self, key: &str, low: f64, high: f64, default: f32) -> Result<f32, CheckpointError> {
        match self.number(key)? {
            None => Ok(default),
            Some(n) if (low..=high).contains(&n) => Ok(n as f32),
            Some(n) => Err(self.bad(key, format!("is {n} and should be from {low} to {high}"))),
        }
    }

    /// Refuse any value but `wanted`; an absent key counts as `wanted`.
    pub fn only(&self, key: &str, wanted: Value, why: &str) -> Result<(), CheckpointError> {
        match self.get(key) {
            Some(v) if *v != wanted => Err(self.bad(key, format!("is {v}, but {why}"))),
            _ => Ok(()),
        }
    }

    pub fn ids(&self, key: &str) -> Result<Vec<u32>, CheckpointError> {
        let id = |v: &Value| {
            (v.as_u64().and_then(|n| u32::try_from(n).ok()))
                .ok_or_else(|| self.bad(key, format!("holds {v}, which is not a token id")))
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(v) => Ok(vec![id(v)?]),
        }
    }
}

/// Parse a file that must hold a JSON object.
pub(crate) fn object(file: &'static str, bytes: &[u8]) -> Result<Map<String, Value>, CheckpointError> {
    serde_json::from_slice(bytes).map_err(|e| CheckpointError::Json { file: file.into(), problem: e.to_string() })
}
