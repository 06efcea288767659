//! Attention of prompts.
