//! What implements [`crate::Gpu`].

#[cfg(feature = "emulated")]
pub mod emulated;
#[cfg(target_os = "macos")]
pub mod metal;
