//! The gated delta rule in its chunk-parallel form.
