//! Tokens out again, with what MSL has and C++ has not replaced.

use super::lex::{Token, join};
use super::signature::{Access, Kernel};
use super::{MslError, Program, StructFields, Target};

/// Output that keeps the lines of the source: compilers' and sanitizers' messages name the `.metal` file.
struct Output<'a> {
    text: String,
    files: &'a [String],
    at: (usize, u32),
    last_is_word: bool,
}

impl Output<'_> {
    fn token(&mut self, t: &Token) {
        self.raw(t, &t.text);
    }

    /// `text` in the place of `t`.
    fn raw(&mut self, t: &Token, text: &str) {
        if self.at != (t.file, t.line) {
            let near = self.at.0 == t.file && t.line > self.at.1 && t.line - self.at.1 < 8;
            if near {
                self.text.extend(std::iter::repeat_n('\n', (t.line - self.at.1) as usize));
            } else {
                self.text.push_str(&format!("\n#line {} \"{}\"\n", t.line, self.files[t.file]));
            }
            self.at = (t.file, t.line);
            self.last_is_word = false;
        }
        let word = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if t.space || word && self.last_is_word {
            self.text.push(' ');
        }
        self.text.push_str(text);
        self.last_is_word = text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    }
}

pub(super) fn rewrite(p: &Program, target: Target) -> Result<String, MslError> {
    let t = &p.tokens;
    let mut out = Output { text: String::new(), files: &p.files, at: (usize::MAX, 0), last_is_word: false };
    let (mut i, mut braces, mut parentheses) = (0, 0usize, 0usize);
    while i < t.len() {
        match t[i].text.as_str() {
            "{" => braces += 1,
            "}" => braces = braces.saturating_sub(1),
            "(" => parentheses += 1,
            ")" => parentheses = parentheses.saturating_sub(1),
            _ => {}
        }
        let word = t[i].text.as_str();
        i = match word {
            "kernel" => {
                let kernel = p.kernels.iter().find(|k| k.span.0 == i).ok_or_else(|| p.error(&t[i], "kernel"))?;
                out.raw(&t[i], &body_signature(kernel, target));
                kernel.span.1 + 1
            }
            "[" if t.get(i + 1).is_some_and(|n| n.text == "[") => after_attribute(t, i),
            "const" if matches!(next(t, i), "device" | "threadgroup" | "constant") => {
                return Err(p.error(&t[i], format!("write `{} const`, the address space first", next(t, i))));
            }
            "device" => device_pointer(p, target, i, &mut out)?,
            "threadgroup" if braces > 0 && parentheses == 0 && !is_pointer(t, i) => threadgroup_array(p, i, &mut out)?,
            "constant" if braces == 0 && parentheses == 0 && !is_pointer(t, i) => constant(p, target, i, &mut out)?,
            "threadgroup" | "constant" | "thread" => {
                let prefix = if word == "constant" { "const " } else { "" };
                let space = if target == Target::Strict { format!("LILY_AS_{word}") } else { String::new() };
                out.raw(&t[i], &format!("{prefix}{space}"));
                i + 1
            }
            _ => {
                out.token(&t[i]);
                i + 1
            }
        };
    }
    Ok(out.text)
}

fn next(t: &[Token], i: usize) -> &str {
    t.get(i + 1).map_or("", |t| t.text.as_str())
}

/// Index after `[[ … ]]`.
fn after_attribute(t: &[Token], start: usize) -> usize {
    let mut depth = 0;
    for (i, t) in t.iter().enumerate().skip(start) {
        match t.text.as_str() {
            "[" => depth += 1,
            "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    t.len()
}

/// Whether the declarator after an address space is a pointer or reference.
fn is_pointer(t: &[Token], i: usize) -> bool {
    let mut angles = 0;
    for t in &t[i + 1..] {
        match t.text.as_str() {
            "<" => angles += 1,
            ">" => angles -= 1,
            "*" | "&" if angles == 0 => return true,
            ";" | "=" | ")" | "," | "[" | "(" if angles == 0 => return false,
            _ => {}
        }
    }
    false
}

/// `device const T*`: a checking pointer class on the emulator, a plain pointer elsewhere.
fn device_pointer(p: &Program, target: Target, i: usize, out: &mut Output<'_>) -> Result<usize, MslError> {
    let t = &p.tokens;
    if target != Target::Emulator {
        out.raw(&t[i], if target == Target::Strict { "LILY_AS_device" } else { "" });
        return Ok(i + 1);
    }
    let mut angles = 0;
    for (j, x) in t.iter().enumerate().skip(i + 1) {
        match x.text.as_str() {
            "<" => angles += 1,
            ">" => angles -= 1,
            "*" if angles == 0 => {
                out.raw(&t[i], &format!("lily_device<{}>", join(&t[i + 1..j])));
                return Ok(j + 1);
            }
            "&" | ";" | "=" | ")" | "," | "(" if angles == 0 => break,
            _ => {}
        }
    }
    Err(p.error(&t[i], "device memory is reached by `device T*` only"))
}

fn until(p: &Program, start: usize, ends: &[&str]) -> Result<usize, MslError> {
    (start..p.tokens.len())
        .find(|&j| ends.contains(&p.tokens[j].text.as_str()))
        .ok_or_else(|| p.error(&p.tokens[start], format!("declaration without {ends:?}")))
}

fn threadgroup_array(p: &Program, i: usize, out: &mut Output<'_>) -> Result<usize, MslError> {
    let t = &p.tokens;
    let end = until(p, i, &[";"])?;
    let name = until(p, i, &["[", ";"])? - 1;
    let ty = join(&t[i + 1..name]).replace(',', " LILY_COMMA ");
    out.raw(&t[i], &format!("LILY_THREADGROUP({ty}, {}, {})", t[name].text, join(&t[name + 1..end])));
    Ok(end)
}

fn constant(p: &Program, target: Target, i: usize, out: &mut Output<'_>) -> Result<usize, MslError> {
    let t = &p.tokens;
    let end = until(p, i, &[";", "="])?;
    let found = p.constants.iter().find(|c| t[i..end].iter().any(|x| x.text == c.name));
    let text = match found {
        Some(c) if target == Target::Cuda => format!("static constexpr {} {} = LILY_FC_{}", c.ty, c.name, c.name),
        Some(c) => format!("LILY_FUNCTION_CONSTANT {} {}", c.ty, c.name),
        None => format!("LILY_CONSTANT {}", join(&t[i + 1..end])),
    };
    out.raw(&t[i], &text);
    Ok(end)
}

fn body_signature(k: &Kernel, target: Target) -> String {
    let parameters: Vec<String> = k
        .arguments
        .iter()
        .map(|a| {
            let constness = if a.access == Access::Read { "const " } else { "" };
            match (a.access, target) {
                (Access::Builtin, _) => format!("{} {}", a.ty, a.name),
                (Access::Value, Target::Strict) => format!("const LILY_AS_constant {}& {}", a.ty, a.name),
                (Access::Value, _) => format!("const {}& {}", a.ty, a.name),
                (_, Target::Emulator) => format!("lily_device<{constness}{}> {}", a.ty, a.name),
                (_, Target::Strict) => format!("LILY_AS_device {constness}{}* {}", a.ty, a.name),
                (_, Target::Cuda) => format!("{constness}{}* {}", a.ty, a.name),
            }
        })
        .collect();
    format!("LILY_KERNEL void lily_body_{}({})", k.name, parameters.join(", "))
}

/// Launchers and tables for the emulator's runtime.
pub(super) fn emulator_tables(p: &Program, structs: &[StructFields<'_>], beginnings: &[&str]) -> String {
    let mut out = String::from("#line 1 \"launchers\"\n");
    let wanted = |k: &&Kernel| beginnings.is_empty() || beginnings.iter().any(|b| k.name.starts_with(b));
    for k in p.kernels.iter().filter(wanted) {
        let given: Vec<String> = k
            .arguments
            .iter()
            .map(|a| match a.access {
                Access::Value => format!("*(const {}*)a->value[{}]", a.ty, a.index),
                Access::Read => format!("lily_device<const {}>(&a->buffer[{}])", a.ty, a.index),
                Access::Write => format!("lily_device<{}>(&a->buffer[{}])", a.ty, a.index),
                Access::Builtin => format!("lily_convert<{}>(t->{}())", a.ty, a.attribute),
            })
            .collect();
        out += &format!(
            "static void lily_run_{n}(LilyArguments* a, LilyThread* t) {{ (void)t; lily_body_{n}({}); }}\n",
            given.join(", "),
            n = k.name
        );
    }
    out += "extern \"C\" const LilyKernel lily_kernels[] = {\n";
    for k in p.kernels.iter().filter(wanted) {
        out += &format!("  {{\"{n}\", lily_run_{n}}},\n", n = k.name);
    }
    out += "  {nullptr, nullptr}};\nextern \"C\" const LilyConstant lily_constants[] = {\n";
    for c in &p.constants {
        out += &format!("  {{\"{n}\", &{n}}},\n", n = c.name);
    }
    out += "  {nullptr, nullptr}};\nextern \"C\" const LilyLayout lily_layouts[] = {\n";
    for s in structs {
        for f in &s.fields {
            out += &format!("  {{\"{n}\", \"{f}\", offsetof({n}, {f}), sizeof({n})}},\n", n = s.name);
        }
    }
    out + "  {nullptr, nullptr, 0, 0}};\n"
}

/// `extern "C"` entries for CUDA: buffers and values in the order of their indices.
pub(super) fn cuda_entries(p: &Program, wanted: impl Fn(&Kernel) -> bool) -> String {
    let mut out = String::new();
    for k in p.kernels.iter().filter(|k| wanted(k)) {
        let parameters: Vec<String> = k
            .bound()
            .map(|a| match a.access {
                Access::Value => format!("const __grid_constant__ {} b{}", a.ty, a.index),
                // What the compiler knows to be constant it might load before an early kernel has waited.
                Access::Read if k.early => format!("const {}* b{}", a.ty, a.index),
                Access::Read => format!("const {}* LILY_RESTRICT b{}", a.ty, a.index),
                _ => format!("{}* b{}", a.ty, a.index),
            })
            .collect();
        let given: Vec<String> = k
            .arguments
            .iter()
            .map(|a| match a.access {
                Access::Builtin => format!("lily_convert<{}>(lily_{}())", a.ty, a.attribute),
                _ => format!("b{}", a.index),
            })
            .collect();
        let resident = k.resident.map_or(String::new(), |n| format!(", {n}"));
        let bounds = k.max_threads.map_or(String::new(), |n| format!("__launch_bounds__({n}{resident}) "));
        out += &format!(
            "extern \"C\" __global__ void {bounds}{n}({}) {{ lily_body_{n}({}); }}\n",
            parameters.join(", "),
            given.join(", "),
            n = k.name
        );
    }
    out
}
