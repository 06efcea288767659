//! JSON and floats as Python spells them, because the model was trained on prompts that Python wrote
//! (`docs/model.md` §7.3, §7.4).

use serde_json::Value;

/// `json.dumps(value, ensure_ascii=False)`: `", "` and `": "`, keys in their order, nothing escaped beyond JSON's needs.
pub(crate) fn dumps(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(n) => match n.as_f64() {
            Some(x) if n.is_f64() => out.push_str(&float(x)),
            _ => out.push_str(&n.to_string()),
        },
        Value::String(s) => write_string(s, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_string(key, out);
                out.push_str(": ");
                write(item, out);
            }
            out.push('}');
        }
    }
}

fn write_string(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `repr(x)`: the shortest digits that read back as `x`, with an exponent (of at least two digits) below 1e-4 and from
/// 1e16 on, and `.0` where there is neither point nor exponent.
pub(crate) fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "NaN"
        } else if x > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("Rust's {:e} always writes an exponent");
    let exponent: i32 = exponent.parse().expect("Rust writes a decimal exponent");
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values printed by CPython 3.11's `json.dumps`.
    #[test]
    fn floats_are_spelled_as_python_does() {
        for (x, want) in [
            (1e-6, "1e-06"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (2.0, "2.0"),
            (-0.0, "-0.0"),
            (2.5, "2.5"),
            (123456789.125, "123456789.125"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (0.1, "0.1"),
            (9007199254740993.0, "9007199254740992.0"),
        ] {
            assert_eq!(float(x), want);
        }
    }

    #[test]
    fn strings_and_containers_are_spelled_as_python_does() {
        let value: Value =
            serde_json::from_str(r#"{"z":[1,-2,true,null,1e-6],"a":{"é<&>'":"\u0001\b\f\n\"\\\u007f"},"e":{},"l":[]}"#)
                .unwrap();
        assert_eq!(
            dumps(&value),
            "{\"z\": [1, -2, true, null, 1e-06], \"a\": {\"é<&>'\": \"\\u0001\\b\\f\\n\\\"\\\\\u{7f}\"}, \"e\": {}, \
             \"l\": []}"
        );
    }
}
