//! Kernel signatures: what each argument is, so that every dispatch can be checked before a device sees it.

use super::lex::{Token, join};
use super::{MslError, Program};

/// How a kernel uses an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `device const T*`.
    Read,
    /// `device T*`: read or written.
    Write,
    /// `constant T&`: bytes copied when the dispatch is encoded.
    Value,
    /// Built in: a position or an index.
    Builtin,
}

/// One argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// `T`, without address space, `const` and pointer.
    pub ty: String,
    /// How it is used.
    pub access: Access,
    /// Of a buffer or value: its index. Else 0.
    pub index: usize,
    /// The word in its attribute: `buffer`, `thread_position_in_grid`, …
    pub attribute: String,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// All arguments in the order of the source.
    pub arguments: Vec<Argument>,
    /// `max_total_threads_per_threadgroup`, where it is given.
    pub max_threads: Option<u32>,
    /// Bytes of `LILY_DYNAMIC(T, name, bytes)` in its body, 0 without it: threadgroup memory beyond the 48 KiB that CUDA lets
    /// a kernel declare.
    pub dynamic: u32,
    /// It may begin before the kernel before it has ended: it waits on its own (`EARLY_BEGIN` in `common.metal`).
    pub early: bool,
    /// N of `LILY_RESIDENT(N)` in its body: threadgroups that a multiprocessor should have room for, which bounds the registers.
    pub resident: Option<u32>,
    /// Tokens: of `kernel`, and of the parenthesis that closes the parameters.
    pub(super) span: (usize, usize),
}

impl Kernel {
    /// Buffers and values by index; the indices are 0, 1, 2, … without a gap.
    pub fn bound(&self) -> impl Iterator<Item = &Argument> {
        let mut bound: Vec<&Argument> = self.arguments.iter().filter(|a| a.access != Access::Builtin).collect();
        bound.sort_by_key(|a| a.index);
        bound.into_iter()
    }
}

/// `constant T NAME [[function_constant(index)]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionConstant {
    /// Its name.
    pub name: String,
    /// `uint`, `int` or `float`.
    pub ty: String,
    /// Its index, unique in the source.
    pub index: usize,
}

pub(super) fn read(p: &Program) -> Result<(Vec<Kernel>, Vec<FunctionConstant>), MslError> {
    let (mut kernels, mut constants) = (Vec::new(), Vec::new());
    let t = &p.tokens;
    let mut i = 0;
    while i < t.len() {
        match t[i].text.as_str() {
            "kernel" => {
                let kernel = kernel(p, i)?;
                i = kernel.span.1;
                kernels.push(kernel);
            }
            "function_constant" => {
                let index = number(p, &t[i + 2])?;
                // constant T NAME [ [ function_constant
                let (name, ty) = (t[i - 3].text.clone(), t[i - 4].text.clone());
                constants.push(FunctionConstant { name, ty, index });
            }
            _ => {}
        }
        i += 1;
    }
    Ok((kernels, constants))
}

fn number(p: &Program, t: &Token) -> Result<usize, MslError> {
    t.text.parse().map_err(|_| p.error(t, format!("'{}' is not a number", t.text)))
}

fn kernel(p: &Program, start: usize) -> Result<Kernel, MslError> {
    let t = &p.tokens;
    let open = (start..t.len()).find(|&i| t[i].text == "(").ok_or_else(|| p.error(&t[start], "kernel without ("))?;
    let close = closing(p, open)?;
    let name = t[open - 1].text.clone();
    if t[start + 1].text != "void" {
        return Err(p.error(&t[start], "write `[[attributes]] kernel void name(…)`"));
    }
    let mut arguments = Vec::new();
    for parameter in split(&t[open + 1..close]) {
        arguments.push(argument(p, parameter)?);
    }
    let (max_threads, dynamic) = (max_threads(p, start)?, dynamic(p, close)?);
    let body = body(t, close);
    let early = body.iter().any(|x| x.text == "lily_release");
    let resident = match body.iter().position(|x| x.text == "LILY_RESIDENT") {
        Some(i) => Some(number(p, &body[i + 2])? as u32),
        None => None,
    };
    let kernel = Kernel { name, arguments, max_threads, dynamic, early, resident, span: (start, close) };
    for (i, a) in kernel.bound().enumerate() {
        if a.index != i {
            return Err(p.error(&t[start], format!("kernel {}: no argument has index {i}", kernel.name)));
        }
    }
    Ok(kernel)
}

/// The tokens from the brace behind `close` to the one that closes it.
fn body(t: &[Token], close: usize) -> &[Token] {
    let mut depth = 0;
    let end = t.iter().skip(close + 1).position(|x| {
        depth += i32::from(x.text == "{") - i32::from(x.text == "}");
        depth == 0
    });
    &t[close + 1..end.map_or(t.len(), |n| close + 1 + n)]
}

/// From the attribute that ends just before `kernel`.
fn max_threads(p: &Program, kernel: usize) -> Result<Option<u32>, MslError> {
    let t = &p.tokens;
    // [ [ max_total_threads_per_threadgroup ( N ) ] ] kernel
    match kernel.checked_sub(6).filter(|&i| t[i].text == "max_total_threads_per_threadgroup") {
        Some(i) => Ok(Some(number(p, &t[i + 2])? as u32)),
        None => Ok(None),
    }
}

/// From the body that begins after the parameters.
fn dynamic(p: &Program, parameters: usize) -> Result<u32, MslError> {
    let t = &p.tokens;
    let end = (parameters..t.len()).find(|&i| t[i].text == "kernel").unwrap_or(t.len());
    match (parameters..end).find(|&i| t[i].text == "LILY_DYNAMIC") {
        Some(i) => Ok(number(p, &t[closing(p, i + 1)? - 1])? as u32),
        None => Ok(0),
    }
}

fn argument(p: &Program, t: &[Token]) -> Result<Argument, MslError> {
    let first = &t[0];
    let attribute = t.windows(2).position(|w| w[0].text == "[" && w[1].text == "[");
    let Some(at) = attribute else {
        return Err(p.error(first, format!("parameter `{}` has no attribute", join(t))));
    };
    let (declaration, attribute) = (&t[..at], &t[at + 2..t.len() - 2]);
    let spaces = ["device", "constant", "threadgroup"];
    if let Some(w) = declaration.windows(2).find(|w| w[0].text == "const" && spaces.contains(&w[1].text.as_str())) {
        return Err(p.error(&w[0], format!("write `{} const`, the address space first", w[1].text)));
    }
    let has = |word: &str| declaration.iter().any(|x| x.text == word);
    let name = declaration.last().map(|x| x.text.clone()).unwrap_or_default();
    let skip = ["device", "constant", "threadgroup", "const", "&", "*"];
    let ty: Vec<Token> =
        declaration[..declaration.len() - 1].iter().filter(|x| !skip.contains(&x.text.as_str())).cloned().collect();
    let buffer = attribute[0].text == "buffer";
    let index = if buffer { number(p, &attribute[2])? } else { 0 };
    let access = match (buffer, has("device") && has("*"), has("constant") && has("&")) {
        (true, true, false) if has("const") => Access::Read,
        (true, true, false) => Access::Write,
        (true, false, true) => Access::Value,
        (false, false, false) if !has("threadgroup") => Access::Builtin,
        _ => {
            let what = "a kernel takes `device const T*`, `device T*`, `constant T&` or a built-in value";
            return Err(p.error(first, format!("`{}`: {what}", join(declaration))));
        }
    };
    Ok(Argument { name, ty: join(&ty), access, index, attribute: attribute[0].text.clone() })
}

/// Parts between the commas that no bracket encloses.
fn split(t: &[Token]) -> Vec<&[Token]> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (i, x) in t.iter().enumerate() {
        match x.text.as_str() {
            "(" | "[" | "<" => depth += 1,
            ")" | "]" | ">" => depth -= 1,
            "," if depth == 0 => {
                parts.push(&t[begin..i]);
                begin = i + 1;
            }
            _ => {}
        }
    }
    if begin < t.len() {
        parts.push(&t[begin..]);
    }
    parts
}

/// The parenthesis that closes the one at `open`.
pub(super) fn closing(p: &Program, open: usize) -> Result<usize, MslError> {
    let mut depth = 0;
    for (i, t) in p.tokens.iter().enumerate().skip(open) {
        match t.text.as_str() {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(i);
        }
    }
    Err(p.error(&p.tokens[open], "unbalanced parenthesis"))
}
