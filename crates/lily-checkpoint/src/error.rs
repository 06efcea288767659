//! Why a checkpoint cannot be used, in sentences that name the file, tensor or key and what a person can do.

/// Every way in which opening a checkpoint fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused a file.
    #[error("{path}: {source}")]
    Io {
        /// File or folder.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nothing at the path, or no folder.
    #[error("{path} is not a folder; a checkpoint is a folder with config.json, tokenizer.json and model*.safetensors")]
    NoFolder {
        /// As given.
        path: String,
    },
    /// The folder lacks a file.
    #[error("{place} has no {file}: {hint}")]
    MissingFile {
        /// The folder, or the name of an embedded checkpoint.
        place: String,
        /// File name.
        file: String,
        /// What the file is needed for and how to get it.
        hint: String,
    },
    /// A file that should hold JSON does not.
    #[error("{file} is not the JSON that is expected there: {problem}")]
    Json {
        /// File name.
        file: String,
        /// What the parser says, with line and column.
        problem: String,
    },
    /// Another model.
    #[error(
        "config.json describes {found}; Lily runs only Qwen3.6-35B-A3B and smaller checkpoints of the same \
         architecture (Qwen3_5MoeForConditionalGeneration, model_type qwen3_5_moe)"
    )]
    Architecture {
        /// Architecture and model_type as found.
        found: String,
    },
    /// A value that this engine cannot run, or that contradicts another one.
    #[error("{file}: `{key}` {problem}")]
    Config {
        /// config.json or generation_config.json.
        file: &'static str,
        /// The key.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// A safetensors header that cannot be right.
    #[error("{file}: {problem}")]
    Header {
        /// Shard.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A shard that ends too early.
    #[error(
        "{file} is cut short: {missing} bytes are missing (its header describes {expected} bytes, the file has \
         {actual}); download it again"
    )]
    Truncated {
        /// Shard.
        file: String,
        /// Bytes that the header describes, itself included.
        expected: u64,
        /// Bytes that are there.
        actual: u64,
        /// The difference.
        missing: u64,
    },
    /// The index does not fit the shards.
    #[error("model.safetensors.index.json: {problem}")]
    Index {
        /// What does not fit.
        problem: String,
    },
    /// A tensor with the wrong type or shape.
    #[error("tensor `{tensor}` in {file} {problem}")]
    Tensor {
        /// Tensor name.
        tensor: String,
        /// Shard.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor of the model that no shard holds.
    #[error("tensor `{tensor}` is in none of the checkpoint's files")]
    MissingTensor {
        /// Tensor name.
        tensor: String,
    },
    /// A tensor that is neither the text model's nor one of those that a text engine skips.
    #[error(
        "tensor `{tensor}` in {file} does not belong to this model (only the vision tower and the MTP layer are \
         skipped)"
    )]
    UnknownTensor {
        /// Tensor name.
        tensor: String,
        /// Shard.
        file: String,
    },
}
