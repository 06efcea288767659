//! Values of tool-call parameters as JSON text.

use serde_json::Value;

use super::schema::Types;

/// The inside of a JSON string.
pub(super) fn escape(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A value of a parameter that isn't simply a string, as JSON text: JSON if the model wrote JSON (or Python's spelling
/// of it) of a type that the schema allows, else the raw text as a string.
pub(super) fn convert(raw: &str, types: Types) -> String {
    let string = || Value::from(raw).to_string();
    let text = raw.trim();
    let (json, value) = match serde_json::from_str::<Value>(text) {
        Ok(value) => (text.to_owned(), value),
        Err(_) => match python_to_json(text).and_then(|json| Some((serde_json::from_str(&json).ok()?, json))) {
            Some((value, json)) => (json, value),
            None => return string(),
        },
    };
    let of_the_type = match &value {
        Value::Null => types.has(Types::NULL),
        Value::Bool(_) => types.has(Types::BOOLEAN),
        Value::Number(_) => types.has(Types::INTEGER) || types.has(Types::NUMBER),
        Value::Array(_) => types.has(Types::ARRAY),
        Value::Object(_) => types.has(Types::OBJECT),
        // Where strings are allowed they are written raw, so quotes are part of the text.
        Value::String(_) => !types.has(Types::STRING),
    };
    if !of_the_type && (types.has(Types::STRING) || value.is_null()) {
        return string();
    }
    match value.as_f64() {
        // "3.0" for an integer. Up to 2^53 the conversion is exact.
        Some(x)
            if value.is_f64() && !types.has(Types::NUMBER) && x.fract() == 0.0 && x.abs() < 9_007_199_254_740_992.0 =>
        {
            (x as i64).to_string()
        }
        // The model's own spelling, which keeps digits that a number type would lose.
        _ => json,
    }
}

/// JSON for a Python literal of numbers, strings, lists, dicts, True, False and None; whether it is valid JSON is for the
/// caller to check.
fn python_to_json(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c == '\'' || c == '"' {
            let (string, after) = python_string(rest)?;
            out.push_str(&Value::from(string).to_string());
            rest = after;
        } else if c.is_ascii_alphabetic() {
            let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            out.push_str(match &rest[..end] {
                "True" | "true" => "true",
                "False" | "false" => "false",
                "None" | "null" => "null",
                // The exponent of a number.
                e @ ("e" | "E") => e,
                _ => return None,
            });
            rest = &rest[end..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    Some(out)
}

/// The value of the quoted string that `text` begins with, and what follows it.
fn python_string(text: &str) -> Option<(String, &str)> {
    let mut chars = text.chars();
    let quote = chars.next()?;
    let mut out = String::new();
    loop {
        match chars.next()? {
            c if c == quote => return Some((out, chars.as_str())),
            '\\' => {
                let escape = chars.next()?;
                let digits = match escape {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    '\\' | '\'' | '"' => escape,
                    'x' | 'u' => {
                        let len = if escape == 'x' { 2 } else { 4 };
                        let code = chars.as_str().get(..len).and_then(|hex| u32::from_str_radix(hex, 16).ok())?;
                        chars = chars.as_str()[len..].chars();
                        char::from_u32(code)?
                    }
                    _ => return None,
                };
                out.push(digits);
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_the_schema_and_fall_back_to_text() {
        let (int, num, boolean) = (Types::INTEGER, Types::NUMBER, Types::BOOLEAN);
        let (text, null, array, object) = (Types::STRING, Types::NULL, Types::ARRAY, Types::OBJECT);
        for (raw, types, want) in [
            ("3", int, "3"),
            ("3.0", int, "3"),
            ("-2.50", num, "-2.50"),
            ("123456789012345678901234567890", int, "123456789012345678901234567890"),
            ("abc", int, "\"abc\""),
            ("null", int, "\"null\""),
            ("null", int | null, "null"),
            ("None", text | null, "null"),
            ("nullable", text | null, "\"nullable\""),
            ("True", boolean, "true"),
            ("false", boolean, "false"),
            ("[1, 'it\\'s', None]", array, "[1, \"it's\", null]"),
            ("{'a': True, \"b\": 1e-06}", object, "{\"a\": true, \"b\": 1e-06}"),
            (" {\"a\": [1,\n2]} ", object, "{\"a\": [1,\n2]}"),
            ("{\"a\": 1", object, "\"{\\\"a\\\": 1\""),
            ("\"quoted\"", text | int, "\"\\\"quoted\\\"\""),
            ("\"quoted\"", int, "\"quoted\""),
            ("12", text | null, "\"12\""),
            ("12", text | int, "12"),
            ("", int, "\"\""),
            ("\"\\ud99c\"", object, "\"\\\"\\\\ud99c\\\"\""),
        ] {
            let got = convert(raw, types);
            assert_eq!(got, want, "{raw:?}");
            serde_json::from_str::<Value>(&got).unwrap();
        }
    }
}
