use crate::MessageError;

/// What can go wrong between a checkpoint's chat files, a list of messages and a prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// `tokenizer.json` or `tokenizer_config.json` can't be used; the text names the file and the entry.
    #[error("{file}: {reason}")]
    Tokenizer {
        /// File name inside the checkpoint folder.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// `chat_template.jinja` doesn't parse.
    #[error("chat_template.jinja: {0}")]
    TemplateSyntax(String),
    /// The template refused the conversation: its own message, as given to `raise_exception`.
    #[error("{0}")]
    Template(String),
    /// The template failed for a reason of its own, such as an unknown filter or an operation on a missing value.
    #[error("chat_template.jinja failed: {0}")]
    TemplateFailed(String),
    /// A message is malformed; the field is named.
    #[error(transparent)]
    Message(#[from] MessageError),
}
