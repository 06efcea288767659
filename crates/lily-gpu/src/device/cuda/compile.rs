//! CUDA text to machine code by NVRTC, for the device's own architecture, and kept in files between runs.

use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};

use super::texts::program;
use crate::gpu::GpuError;
use crate::msl::Kernel;

/// Compiles for one architecture.
pub struct Compiler {
    architecture: String,
    /// Driver and NVRTC: with another version the code is compiled anew.
    versions: [i32; 3],
    folder: Option<PathBuf>,
}

impl Compiler {
    /// For a compute capability. `folder`: where compiled code is kept; `None` keeps none.
    ///
    /// # Errors
    /// [`GpuError::Device`] where there is no NVRTC.
    pub fn new(capability: (i32, i32), driver: i32, folder: Option<PathBuf>) -> Result<Self, GpuError> {
        // SAFETY: it opens a library by name; NVRTC's initialisers do nothing unusual.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::Device(
                "NVRTC is missing: install the CUDA toolkit's libnvrtc, version 12 or 13".into(),
            ));
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are valid for the call.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
            .result()
            .map_err(|e| GpuError::Device(format!("NVRTC does not say its version: {e}")))?;
        // The matrix and copy instructions of Hopper need the variant of the architecture that newer chips don't keep.
        let suffix = if capability.0 == 9 { "a" } else { "" };
        let architecture = format!("sm_{}{}{suffix}", capability.0, capability.1);
        Ok(Self { architecture, versions: [driver, major, minor], folder })
    }

    /// Machine code of one kernel with these function constants.
    ///
    /// # Errors
    /// [`GpuError::Shader`] with the compiler's text.
    pub fn kernel(&self, kernel: &Kernel, constants: &[(&str, u32)]) -> Result<Vec<u8>, GpuError> {
        let source = program(&kernel.name)
            .cuda_kernels(|k| k.name == kernel.name)
            .map_err(|e| GpuError::Shader(e.to_string()))?;
        let mut options = vec![format!("-arch={}", self.architecture)];
        // Denormals, division and square roots as IEEE has them are NVRTC's defaults.
        options.extend(["-default-device", "-std=c++17", "-diag-suppress=177,550"].map(String::from));
        for (name, value) in constants {
            options.push(format!("-DLILY_FC_{name}={value}u"));
        }
        let file = self.folder.as_ref().map(|f| f.join(self.file_name(&source, &options)));
        if let Some(code) = file.as_deref().and_then(load) {
            return Ok(code);
        }
        let code = compile(&source, &options).map_err(|e| GpuError::Shader(format!("{}: {e}", kernel.name)))?;
        if let Some(file) = file {
            store(&file, &code);
        }
        Ok(code)
    }

    fn file_name(&self, source: &str, options: &[String]) -> String {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, source, options, self.versions).hash(&mut hasher);
            hasher.finish()
        };
        format!("{:016x}{:016x}.cubin", half(0), half(1))
    }
}

/// Where compiled code is kept by default: `lily/cuda` in the user's cache folder.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("LOCALAPPDATA")).or_else(|| set("HOME").map(|h| h.join(".cache")));
    base.map(|b| b.join("lily").join("cuda"))
}

/// A file is a hash of the code, then the code.
const HASH: usize = 8;

fn hash(code: &[u8]) -> [u8; HASH] {
    let mut hasher = DefaultHasher::new();
    code.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

/// The code in a file, unless it is damaged.
fn load(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(file).ok()?;
    let code = bytes.split_off(HASH.min(bytes.len()));
    (!code.is_empty() && bytes == hash(&code)).then_some(code)
}

/// Keeps code, where that is possible. Other processes see the whole file or none.
fn store(file: &Path, code: &[u8]) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Some(folder) = file.parent() else { return };
    let unique = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let beside = file.with_extension(format!("{}-{}", unique.0, unique.1));
    let kept = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&beside, [&hash(code), code].concat()))
        .and_then(|()| std::fs::rename(&beside, file));
    if kept.is_err() {
        // A full or read-only disk costs the time of compiling again, nothing else.
        let _ = std::fs::remove_file(&beside);
    }
}

fn compile(source: &str, options: &[String]) -> Result<Vec<u8>, String> {
    let source = CString::new(source).map_err(|_| "a zero byte in the source".to_string())?;
    let failed = |e: result::NvrtcError| format!("NVRTC: {e}");
    let handle = result::create_program(&source, Some(c"lily.cu")).map_err(failed)?;
    // SAFETY: the handle is valid until it is destroyed below, `source` outlives it, and the buffers have the sizes that
    // NVRTC names for them.
    unsafe {
        let compiled = result::compile_program(handle, options).map_err(|_| {
            let log = result::get_program_log(handle).unwrap_or_default();
            let bytes: Vec<u8> = log.iter().map(|&c| c as u8).collect();
            CStr::from_bytes_until_nul(&bytes).map(|c| c.to_string_lossy().into_owned()).unwrap_or_default()
        });
        let code = compiled.and_then(|()| {
            let mut size = 0;
            sys::nvrtcGetCUBINSize(handle, &mut size).result().map_err(failed)?;
            let mut code = vec![0u8; size];
            sys::nvrtcGetCUBIN(handle, code.as_mut_ptr().cast()).result().map_err(failed)?;
            Ok(code)
        });
        let _ = result::destroy_program(handle);
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_not_loaded() {
        let folder = std::env::temp_dir().join(format!("lily-cubin-{}", std::process::id()));
        let file = folder.join("a.cubin");
        assert_eq!(load(&file), None);
        store(&file, b"machine code");
        assert_eq!(load(&file).as_deref(), Some(&b"machine code"[..]));
        for damage in [&b""[..], b"short", b"12345678machine code"] {
            std::fs::write(&file, damage).unwrap();
            assert_eq!(load(&file), None);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
