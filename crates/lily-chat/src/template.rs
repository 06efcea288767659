use minijinja::value::{Kwargs, Value as JinjaValue};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use crate::{ChatError, python_json};

/// What a prompt is rendered from.
#[derive(Debug, Clone, Default)]
pub struct PromptInput {
    /// Messages in the shape that templates expect: see [`crate::messages::normalise`].
    pub messages: Vec<Value>,
    /// Tool objects (`{"type": "function", "function": {…}}`), or none.
    pub tools: Option<Vec<Value>>,
    /// Whether the prompt ends by opening the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further template variables, such as `enable_thinking`, `preserve_thinking`, `add_vision_id`. `messages`, `tools`
    /// and `add_generation_prompt` in here are ignored.
    pub kwargs: Map<String, Value>,
}

/// A checkpoint's `chat_template.jinja`, set up the way the Python reference sets Jinja2 up (`docs/model.md` §7.4).
#[derive(Debug)]
pub struct Template {
    env: Environment<'static>,
}

const NAME: &str = "chat_template.jinja";

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// [`ChatError::TemplateSyntax`] with the line.
    pub fn new(source: &str) -> Result<Self, ChatError> {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_filter("tojson", to_json);
        env.add_function("raise_exception", raise_exception);
        env.add_template_owned(NAME, source.to_owned()).map_err(|e| ChatError::TemplateSyntax(e.to_string()))?;
        Ok(Self { env })
    }

    /// Renders a conversation to the prompt's text, as it is: strings that look like control tokens are not told apart
    /// here, see [`crate::Chat::prompt`].
    ///
    /// # Errors
    /// [`ChatError::Template`] with the template's own sentence when it refuses the conversation,
    /// [`ChatError::TemplateFailed`] when it can't be carried out.
    pub fn render(&self, input: &PromptInput) -> Result<String, ChatError> {
        let mut variables = input.kwargs.clone();
        variables.insert("messages".into(), Value::Array(input.messages.clone()));
        variables.insert("tools".into(), input.tools.clone().map_or(Value::Null, Value::Array));
        variables.insert("add_generation_prompt".into(), Value::Bool(input.add_generation_prompt));
        self.render_variables(&Value::Object(variables))
    }

    /// Renders with exactly these variables.
    pub(crate) fn render_variables(&self, variables: &Value) -> Result<String, ChatError> {
        let template = self.env.get_template(NAME).expect("added by new");
        template.render(variables).map_err(|error| match raised(&error) {
            Some(message) => ChatError::Template(message),
            None => ChatError::TemplateFailed(error.to_string()),
        })
    }
}

/// Marks the errors that a template raises itself, so that its sentence can be told from the engine's.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn raised(error: &Error) -> Option<String> {
    let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = at {
        if let Some(Raised(message)) = e.downcast_ref() {
            return Some(message.clone());
        }
        at = e.source();
    }
    None
}

/// `tojson` as transformers defines it; of its options only `ensure_ascii=false` is known, which is the default.
fn to_json(value: &JinjaValue, options: Kwargs) -> Result<JinjaValue, Error> {
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson(ensure_ascii=true) is not supported"));
    }
    options.assert_all_used()?;
    let value = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, "tojson: not a JSON value").with_source(e))?;
    Ok(JinjaValue::from_safe_string(python_json::dumps(&value)))
}
