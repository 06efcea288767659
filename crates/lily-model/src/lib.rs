//! The shape of the one model that Lily runs, and the contract that every device fulfils.
//!
//! - [`Shape`]: dimensions and layer kinds of Qwen3.6-35B-A3B (`docs/model.md §1`); smaller checkpoints of exactly the
//!   same architecture differ only in these numbers.
//! - [`Costs`]: bytes and FLOPs of a decoded token and of a prefill (`docs/model.md §5`).
//! - [`KvType`]: what cached keys and values are kept as.
//! - [`Model`]: begin a sequence, extend it with tokens, read logits, snapshot, restore.
//!
//! This room knows nothing of files, devices, tokenizers, chat or HTTP, and depends on no other room.

mod costs;
mod footprint;
mod kv;
mod model;
mod shape;

pub use costs::{Costs, PartBytes};
pub use footprint::Footprint;
pub use kv::KvType;
pub use model::{Logits, Model, ModelError, Part, Rows, SeqId, SequenceBytes, Shared, Snapshot, Stats, Top};
pub use shape::{LayerKind, Shape};
