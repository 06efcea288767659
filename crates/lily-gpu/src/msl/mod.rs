//! The source pass: one MSL text in; kernel signatures, and the same kernels for other compilers, out.
//!
//! - [`Program::parse`]: tokens with macros expanded, the signature of every kernel, the function constants.
//! - [`Program::emulator`]: C++ for the emulator, where device pointers check and count each access.
//! - [`Program::strict`]: C++ for clang, where MSL's address spaces are clang's: mixing them does not compile.
//! - [`Program::cuda`]: CUDA C++ for NVRTC.
//!
//! The pass is used by the build script too and knows nothing of the rest of the crate. It reads a small MSL: the rules are
//! in `docs/metal.md`, and what breaks one is an error with file and line.

mod expand;
mod lex;
mod rewrite;
mod signature;

#[allow(unused_imports)] // the build script uses none of these
pub use signature::{Access, Argument, FunctionConstant, Kernel};

use lex::Token;

/// A kernel source breaks a rule of the source pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MslError {
    /// Part of the source, by the name of its `#line`.
    pub file: String,
    /// Line in it, from 1.
    pub line: u32,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for MslError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for MslError {}

/// Which compiler the output is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Emulator,
    Strict,
    Cuda,
}

/// A struct that kernels take by value, for the layout table of [`Program::emulator`].
pub struct StructFields<'a> {
    /// Its name in MSL.
    pub name: &'a str,
    /// Its fields in order.
    pub fields: Vec<&'a str>,
}

/// A parsed source.
pub struct Program {
    tokens: Vec<Token>,
    files: Vec<String>,
    kernels: Vec<Kernel>,
    constants: Vec<FunctionConstant>,
}

impl Program {
    /// Reads a source. `defined` are names that `#ifdef` sees.
    ///
    /// # Errors
    /// Where the source breaks a rule of the pass.
    pub fn parse(source: &str, defined: &[&str]) -> Result<Self, MslError> {
        let expanded = expand::expand(source, defined)?;
        let mut program =
            Self { tokens: expanded.tokens, files: expanded.files, kernels: Vec::new(), constants: Vec::new() };
        let (kernels, constants) = signature::read(&program)?;
        (program.kernels, program.constants) = (kernels, constants);
        Ok(program)
    }

    /// Every kernel, in the order of the source.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel called `name`.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// Every function constant.
    pub fn constants(&self) -> &[FunctionConstant] {
        &self.constants
    }

    /// C++ for the emulator: the kernels, a table `lily_kernels` of launchers, `lily_constants` and `lily_layouts`. With
    /// `beginnings` the table holds only kernels whose names begin so, and compilers drop what only the others use.
    ///
    /// # Errors
    /// Where the source breaks a rule of the pass.
    pub fn emulator(&self, structs: &[StructFields<'_>], beginnings: &[&str]) -> Result<String, MslError> {
        let body = rewrite::rewrite(self, Target::Emulator)?;
        Ok(format!("#include \"metal_stdlib.h\"\n{body}\n{}", rewrite::emulator_tables(self, structs, beginnings)))
    }

    /// C++ that clang only checks.
    ///
    /// # Errors
    /// Where the source breaks a rule of the pass.
    pub fn strict(&self) -> Result<String, MslError> {
        Ok(format!("{}\n{}", include_str!("strict.h"), rewrite::rewrite(self, Target::Strict)?))
    }

    /// One self-contained CUDA source with an `extern "C"` entry for each kernel. Function constants become
    /// `LILY_FC_name`, to be defined on the command line.
    ///
    /// # Errors
    /// Where the source breaks a rule of the pass.
    pub fn cuda(&self) -> Result<String, MslError> {
        self.cuda_kernels(|_| true)
    }

    /// As [`Program::cuda`], with entries for some kernels only. The compiler drops what they don't use.
    ///
    /// # Errors
    /// Where the source breaks a rule of the pass.
    pub fn cuda_kernels(&self, wanted: impl Fn(&Kernel) -> bool) -> Result<String, MslError> {
        let body = rewrite::rewrite(self, Target::Cuda)?;
        let header = include_str!("cuda.h")
            .replace("#include \"vec.h\"", include_str!("vec.h"))
            .replace("#include \"mma.h\"", include_str!("mma.h"))
            .replace("#include \"wgmma.h\"", include_str!("wgmma.h"));
        Ok(format!("{header}\n{body}\n{}", rewrite::cuda_entries(self, wanted)))
    }

    fn error(&self, at: &Token, what: impl Into<String>) -> MslError {
        MslError { file: self.files[at.file].clone(), line: at.line, what: what.into() }
    }
}

#[cfg(test)]
mod tests;
