//! Attention of decoded tokens.
