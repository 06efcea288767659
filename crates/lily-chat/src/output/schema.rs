//! What the JSON schemas of tools say about the type of a parameter.

use std::collections::HashMap;

use serde_json::Value;

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const STRING: Self = Self(1);
    pub(super) const INTEGER: Self = Self(2);
    pub(super) const NUMBER: Self = Self(4);
    pub(super) const BOOLEAN: Self = Self(8);
    pub(super) const OBJECT: Self = Self(16);
    pub(super) const ARRAY: Self = Self(32);
    pub(super) const NULL: Self = Self(64);
    const NONE: Self = Self(0);
    const ANY: Self = Self(127);

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            "null" => Self::NULL,
            _ => Self::NONE,
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(n) if n.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}

impl std::ops::BitOr for Types {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How a parameter's text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As it is, a string.
    Text,
    /// As JSON of one of these types, where it is that.
    Typed(Types),
}

/// The declared tools: name → parameters schema.
#[derive(Debug)]
pub(super) struct ToolSchemas(HashMap<String, Value>);

impl ToolSchemas {
    pub(super) fn new(tools: &[Value]) -> Self {
        let function = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, function.get("parameters").cloned().unwrap_or_default()))
        };
        Self(tools.iter().filter_map(function).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn knows(&self, function: &str) -> bool {
        self.0.contains_key(function)
    }

    /// A parameter that no schema mentions is text.
    pub(super) fn kind(&self, function: &str, key: &str) -> Kind {
        let Some(root) = self.0.get(function) else { return Kind::Text };
        let schema = root.get("properties").and_then(|p| p.get(key));
        let schema = schema.or_else(|| root.get("additionalProperties").filter(|s| s.is_object()));
        match schema.map(|schema| types(schema, root, 0)) {
            None | Some(Types::STRING) => Kind::Text,
            Some(types) => Kind::Typed(types),
        }
    }
}

/// The types that a schema allows; all of them where it doesn't say.
fn types(schema: &Value, root: &Value, depth: usize) -> Types {
    // References may go in circles.
    const DEEPEST: usize = 16;
    if depth > DEEPEST {
        return Types::ANY;
    }
    let union = |schemas: &[Value]| schemas.iter().fold(Types::NONE, |all, s| all | types(s, root, depth + 1));
    let known = if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        target.strip_prefix('#').and_then(|path| root.pointer(path)).map(|s| types(s, root, depth + 1))
    } else if let Some(name) = schema.get("type") {
        match name {
            Value::String(name) => Some(Types::named(name)),
            Value::Array(names) => {
                Some(names.iter().filter_map(Value::as_str).fold(Types::NONE, |all, name| all | Types::named(name)))
            }
            _ => None,
        }
    } else if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        Some(values.iter().fold(Types::NONE, |all, value| all | Types::of(value)))
    } else if let Some(value) = schema.get("const") {
        Some(Types::of(value))
    } else if let Some(schemas) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
        Some(union(schemas))
    } else if let Some(schemas) = schema.get("allOf").and_then(Value::as_array) {
        let each = schemas.iter().map(|s| types(s, root, depth + 1));
        Some(each.fold(Types::ANY, |all, one| Types(all.0 & one.0)))
    } else {
        None
    };
    known.filter(|types| *types != Types::NONE).unwrap_or(Types::ANY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_say_how_a_parameter_is_read() {
        let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {
        "type": "object",
        "$defs": {"point": {"type": "object"}, "loop": {"$ref": "#/$defs/loop"}},
        "properties": {
            "text": {"type": "string"}, "size": {"enum": ["S", "M"]}, "level": {"enum": [1, 2]},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "both": {"type": ["string", "integer"]},
            "at": {"$ref": "#/$defs/point"}, "loop": {"$ref": "#/$defs/loop"}, "any": {},
            "all": {"allOf": [{"type": "integer"}, {"minimum": 1}]},
        }}}})];
        let schemas = ToolSchemas::new(&tools);
        assert!(schemas.knows("f") && !schemas.knows("g"));
        for (key, kind) in [
            ("text", Kind::Text),
            ("size", Kind::Text),
            ("unheard_of", Kind::Text),
            ("level", Kind::Typed(Types::INTEGER)),
            ("maybe", Kind::Typed(Types::STRING | Types::NULL)),
            ("both", Kind::Typed(Types::STRING | Types::INTEGER)),
            ("at", Kind::Typed(Types::OBJECT)),
            ("loop", Kind::Typed(Types::ANY)),
            ("any", Kind::Typed(Types::ANY)),
            ("all", Kind::Typed(Types::INTEGER)),
        ] {
            assert_eq!(schemas.kind("f", key), kind, "{key}");
        }
        assert_eq!(schemas.kind("g", "text"), Kind::Text);
    }
}
