//! Which `model` names are this model.

use crate::error::ApiError;

/// The names that requests may give in `model`. A missing name and `"default"` are this model as well; anything else
/// is refused, and nothing is ever looked up on a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelNames {
    /// The name that answers carry.
    pub id: String,
    /// Further names: the folder's name, and what the user added. One that ends in `*` is every name that begins so.
    pub aliases: Vec<String>,
}

impl ModelNames {
    /// Whether `name` is this model.
    pub fn knows(&self, name: &str) -> bool {
        let is = |alias: &String| match alias.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => alias == name,
        };
        name == "default" || name == self.id || self.aliases.iter().any(is)
    }

    /// Refuse a name that is not this model, with a list of those that are.
    pub(crate) fn check(&self, name: &str) -> Result<(), ApiError> {
        if self.knows(name) {
            return Ok(());
        }
        let mut names = vec![self.id.as_str()];
        names.extend(self.aliases.iter().map(String::as_str).filter(|a| *a != self.id && *a != "default"));
        names.push("default");
        let shown: String = name.chars().take(100).collect();
        Err(ApiError::model_not_found(format!(
            "no model is called {shown:?} here; there is {}; --alias NAME at the start of the server adds a name",
            names.join(", ")
        )))
    }
}
