//! Every dispatch is checked against the signature that the source pass read, before a device sees it.

use std::sync::LazyLock;

use crate::args::STRUCTS;
use crate::gpu::{Arg, GpuError, Launch};
use crate::msl::{Access, Kernel, Program};

/// The parsed shader source.
///
/// # Panics
/// Where the source breaks a rule of the pass, which tests exclude.
pub fn program() -> &'static Program {
    static PROGRAM: LazyLock<Program> = LazyLock::new(|| match Program::parse(&crate::shader::whole_source(), &[]) {
        Ok(program) => program,
        Err(e) => panic!("{e}"),
    });
    &PROGRAM
}

/// Bytes of a type that kernels take by value.
fn size_of_value(ty: &str) -> Option<usize> {
    match ty {
        "uint" | "int" | "float" => Some(4),
        "ulong" => Some(8),
        _ => STRUCTS.iter().find(|s| s.name == ty).map(|s| s.size),
    }
}

/// The kernel of a launch, where name, constants, arguments and grid fit. `size`: bytes of a buffer. For devices.
///
/// # Errors
/// [`GpuError::Launch`].
pub fn check<'a, B>(p: &'a Program, launch: &Launch<'_, B>, size: impl Fn(&B) -> u64) -> Result<&'a Kernel, GpuError> {
    let error = |what: String| GpuError::launch(launch.kernel, what);
    let kernel = p.kernel(launch.kernel).ok_or_else(|| {
        let mma = "its matrix instructions are those of NVIDIA GPUs, and this device is another";
        error(if crate::is_mma(launch.kernel) { mma } else { "not in the shader source" }.into())
    })?;
    for (name, _) in launch.constants {
        if !p.constants().iter().any(|c| c.name == *name) {
            return Err(error(format!("no function constant {name}")));
        }
    }
    let wanted = kernel.bound().count();
    if launch.args.len() != wanted {
        return Err(error(format!("{} arguments given, {wanted} wanted", launch.args.len())));
    }
    for (given, wanted) in launch.args.iter().zip(kernel.bound()) {
        let name = &wanted.name;
        match (given, wanted.access) {
            (Arg::Buffer(b, offset), Access::Read | Access::Write) if *offset >= size(b) => {
                return Err(error(format!("`{name}` begins at {offset} of a buffer of {} bytes", size(b))));
            }
            (Arg::Buffer(..), Access::Read | Access::Write) => {}
            (Arg::Value(bytes), Access::Value) if size_of_value(&wanted.ty) == Some(bytes.len()) => {}
            (Arg::Value(bytes), Access::Value) => {
                return Err(error(format!("`{name}` is a {}, {} bytes given", wanted.ty, bytes.len())));
            }
            (Arg::Value(_), _) => return Err(error(format!("`{name}` is a buffer, a value is given"))),
            (Arg::Buffer(..), _) => return Err(error(format!("`{name}` is a value, a buffer is given"))),
        }
    }
    let threads = launch.threads.iter().map(|&n| u64::from(n)).product::<u64>();
    let most = u64::from(kernel.max_threads.unwrap_or(1024));
    if threads == 0 || threads > most {
        return Err(error(format!("{threads} threads a threadgroup, 1 to {most} wanted")));
    }
    if launch.groups.contains(&0) {
        return Err(error(format!("an empty grid {:?}", launch.groups)));
    }
    Ok(kernel)
}
