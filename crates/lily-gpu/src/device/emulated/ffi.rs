//! The emulator's C++ side (`abi.h`).

use std::ffi::{CStr, c_char, c_void};

#[repr(C)]
pub struct LilyBuffer {
    pub base: *mut u8,
    pub size: u64,
    /// Loaded, stored.
    pub bytes: [u64; 2],
    pub lines: [*mut u8; 2],
    pub name: *const c_char,
}

impl LilyBuffer {
    pub const NONE: Self = Self {
        base: std::ptr::null_mut(),
        size: 0,
        bytes: [0; 2],
        lines: [std::ptr::null_mut(); 2],
        name: c"".as_ptr(),
    };
}

#[repr(C)]
pub struct LilyArguments {
    pub buffers: [LilyBuffer; 31],
    pub values: [*const c_void; 31],
}

#[repr(C)]
pub struct LilyKernel {
    name: *const c_char,
    run: *const c_void,
}

// SAFETY: a constant entry: its name and the address of a function.
unsafe impl Sync for LilyKernel {}

#[repr(C)]
pub struct LilySetting {
    pub address: *mut c_void,
    pub value: u32,
}

/// A function constant: a global of the kernels.
pub struct Constant {
    pub name: &'static str,
    /// Of its 4 bytes, which only the runtime touches, under its lock.
    pub address: *mut c_void,
}

// SAFETY: no Rust code reads or writes through the address.
unsafe impl Send for Constant {}
// SAFETY: as above.
unsafe impl Sync for Constant {}

#[repr(C)]
struct LilyConstant {
    name: *const c_char,
    address: *mut c_void,
}

#[cfg(test)]
#[repr(C)]
struct LilyLayout {
    name: *const c_char,
    field: *const c_char,
    offset: usize,
    size: usize,
}

unsafe extern "C" {
    static lily_kernels: [LilyKernel; 0];
    static lily_constants: [LilyConstant; 0];
    #[cfg(test)]
    static lily_layouts: [LilyLayout; 0];
    pub fn lily_dispatch(
        kernel: *const LilyKernel,
        arguments: *mut LilyArguments,
        groups: *const u32,
        threads: *const u32,
        settings: *const LilySetting,
        workers: u32,
        seed: u32,
        error: *mut c_char,
        error_size: usize,
    ) -> i64;
}

/// Entries of a table that ends with one whose name is null.
fn entries<T: 'static>(
    first: *const T,
    name: fn(&T) -> *const c_char,
) -> impl Iterator<Item = (&'static str, &'static T)> {
    (0..).map_while(move |i| {
        // SAFETY: the table is static and ends with a null name, after which `map_while` is not asked again.
        let entry = unsafe { &*first.add(i) };
        (!name(entry).is_null()).then(|| (text(name(entry)), entry))
    })
}

fn text(p: *const c_char) -> &'static str {
    // SAFETY: names in the tables are string literals, ASCII and zero-terminated.
    unsafe { CStr::from_ptr(p) }.to_str().unwrap_or("")
}

pub fn kernels() -> impl Iterator<Item = (&'static str, &'static LilyKernel)> {
    // SAFETY: only the address of the table is taken.
    entries(unsafe { lily_kernels.as_ptr() }, |k| k.name)
}

pub fn constants() -> impl Iterator<Item = Constant> {
    // SAFETY: as above.
    entries(unsafe { lily_constants.as_ptr() }, |c| c.name).map(|(name, c)| Constant { name, address: c.address })
}

/// Struct, field, offset and size of the struct, as the C++ compiler laid it out.
#[cfg(test)]
pub fn layouts() -> impl Iterator<Item = (&'static str, &'static str, usize, usize)> {
    // SAFETY: as above.
    entries(unsafe { lily_layouts.as_ptr() }, |l| l.name).map(|(name, l)| (name, text(l.field), l.offset, l.size))
}
