//! What implements [`crate::Gpu`].

#[cfg(all(any(target_os = "linux", windows), any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod cuda;
#[cfg(feature = "emulated")]
pub mod emulated;
#[cfg(target_os = "macos")]
pub mod metal;
