//! A dispatch by the names of its arguments, so that it can be changed without knowing their order.

use std::sync::LazyLock;

use crate::args::STRUCTS;
use crate::gpu::{Arg, GpuError, Launch};
use crate::msl::{Access, Kernel, Program};

/// The texts that the engine's kernels stand in.
fn kernel(name: &str) -> Option<&'static Kernel> {
    static MMA: LazyLock<Option<Program>> = LazyLock::new(|| Program::parse(&crate::mma_source(), &["LILY_CUDA"]).ok());
    let mma = || MMA.as_ref().and_then(|p| p.kernel(name));
    crate::check::program().kernel(name).or_else(mma)
}

/// A dispatch that is about to be encoded.
pub(super) struct Named<'a, B> {
    kernel: &'static Kernel,
    /// The dispatch as it goes on: buffers may be replaced, fields of the arguments' struct too.
    pub args: Vec<Arg<'a, B>>,
    /// The struct, and its place among the arguments.
    pub value: Vec<u8>,
    value_at: usize,
    pub groups: [u32; 3],
    threads: [u32; 3],
    constants: &'a [(&'a str, u32)],
}

impl<'a, B> Named<'a, B> {
    /// # Errors
    /// Where the kernel is unknown or takes no struct.
    pub fn of(launch: &Launch<'a, B>) -> Result<Self, GpuError> {
        let error = |what: &str| GpuError::launch(launch.kernel, what);
        let kernel = kernel(launch.kernel).ok_or_else(|| error("not in the shader source"))?;
        let value_at =
            kernel.bound().position(|a| a.access == Access::Value).ok_or_else(|| error("takes no struct"))?;
        let Some(Arg::Value(value)) = launch.args.get(value_at) else {
            return Err(error("a buffer in a struct's place"));
        };
        Ok(Self {
            kernel,
            args: launch.args.to_vec(),
            value: value.to_vec(),
            value_at,
            groups: launch.groups,
            threads: launch.threads,
            constants: launch.constants,
        })
    }

    /// The same with another kernel, whose arguments are alike.
    ///
    /// # Errors
    /// Where there is none.
    pub fn rename(&mut self, name: &str) -> Result<(), GpuError> {
        let other = kernel(name).ok_or_else(|| GpuError::launch(name, "not in the shader source"))?;
        if !other.bound().map(|a| (&a.name, a.access)).eq(self.kernel.bound().map(|a| (&a.name, a.access))) {
            return Err(GpuError::launch(name, format!("takes other arguments than {}", self.kernel.name)));
        }
        self.kernel = other;
        Ok(())
    }

    fn error(&self, what: String) -> GpuError {
        GpuError::launch(&self.kernel.name, what)
    }

    /// Where an argument stands.
    ///
    /// # Errors
    /// Where the kernel has none of this name: it has changed, and the ablation must change with it.
    pub fn place(&self, name: &str) -> Result<usize, GpuError> {
        let place = self.kernel.bound().position(|a| a.name == name);
        place.ok_or_else(|| self.error(format!("the ablation looks for an argument `{name}`")))
    }

    /// # Errors
    /// As [`Self::place`].
    pub fn buffer(&self, name: &str) -> Result<(&'a B, u64), GpuError> {
        match self.args[self.place(name)?] {
            Arg::Buffer(buffer, offset) => Ok((buffer, offset)),
            Arg::Value(_) => Err(self.error(format!("the ablation takes `{name}` for a buffer"))),
        }
    }

    fn field_at(&self, name: &str) -> Result<(usize, &'static str), GpuError> {
        let ty = self.kernel.bound().nth(self.value_at).map_or("", |a| a.ty.as_str());
        let fields = STRUCTS.iter().find(|s| s.name == ty).map_or(&[][..], |s| s.fields);
        let field = fields.iter().find(|f| f.0 == name);
        field.map(|f| (f.2, f.1)).ok_or_else(|| self.error(format!("the ablation looks for a field `{name}`")))
    }

    /// A field of the struct.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn field(&self, name: &str) -> Result<u64, GpuError> {
        let (at, ty) = self.field_at(name)?;
        let bytes = &self.value[at..];
        Ok(match ty {
            "u64" => u64::from_ne_bytes(bytes.first_chunk().copied().unwrap_or_default()),
            _ => u32::from_ne_bytes(bytes.first_chunk().copied().unwrap_or_default()).into(),
        })
    }

    /// As [`Self::field`], of 32 bits.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn small(&self, name: &str) -> Result<u32, GpuError> {
        self.field(name).map(|v| v as u32)
    }

    /// Changes a field of 32 bits.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn set(&mut self, name: &str, value: u32) -> Result<(), GpuError> {
        let (at, _) = self.field_at(name)?;
        self.value[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        Ok(())
    }

    /// Hands the dispatch on.
    ///
    /// # Errors
    /// Of `encode`.
    pub fn send(&self, encode: impl FnOnce(&Launch<'_, B>) -> Result<(), GpuError>) -> Result<(), GpuError> {
        let mut args = self.args.clone();
        args[self.value_at] = Arg::Value(&self.value);
        let (groups, threads) = (self.groups, self.threads);
        encode(&Launch { kernel: &self.kernel.name, constants: self.constants, args: &args, groups, threads })
    }
}
