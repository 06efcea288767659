//! The preprocessor that the kernels need: `#define`, `#undef`, `#ifdef`, `#ifndef`, `#else`, `#endif`, `#line`; `#include` and
//! `#pragma` are dropped. Macros take `##` but not `#`, and have no variable arguments.

use std::collections::HashMap;

use super::MslError;
use super::lex::{Token, tokens, without_comments};

struct Macro {
    /// `None` for an object-like macro.
    parameters: Option<Vec<String>>,
    body: Vec<Token>,
}

/// A source as tokens, with the names of the parts that its `#line` directives gave.
pub struct Expanded {
    /// All tokens, macros expanded.
    pub tokens: Vec<Token>,
    /// Names of the parts; the first is for text before any `#line`.
    pub files: Vec<String>,
}

/// Expands `source` with `defined` names defined as empty macros.
pub fn expand(source: &str, defined: &[&str]) -> Result<Expanded, MslError> {
    let text = without_comments(source);
    let mut macros: HashMap<String, Macro> =
        defined.iter().map(|n| (n.to_string(), Macro { parameters: None, body: Vec::new() })).collect();
    let mut out = Expanded { tokens: Vec::new(), files: vec!["source".into()] };
    let (mut file, mut line) = (0, 0);
    // For each open #if: whether its text counts.
    let mut conditions: Vec<bool> = Vec::new();
    let mut pending: Vec<Token> = Vec::new();
    let mut lines = text.lines();
    while let Some(text) = lines.next() {
        line += 1;
        let first_line = line;
        let mut text = text.to_string();
        while text.trim_start().starts_with('#') && text.ends_with('\\') {
            text.pop();
            text.push_str(lines.next().unwrap_or(""));
            line += 1;
        }
        let active = conditions.iter().all(|&c| c);
        let Some(directive) = text.trim_start().strip_prefix('#') else {
            if active {
                tokens(&text, file, first_line, &mut pending);
            }
            continue;
        };
        let here = out.files[file].clone();
        let error = |what: &str| MslError { file: here.clone(), line: first_line, what: what.into() };
        let mut words = Vec::new();
        tokens(directive, file, first_line, &mut words);
        let name = words.get(1).map(|t| t.text.clone()).unwrap_or_default();
        match words.first().map(|t| t.text.as_str()).unwrap_or("") {
            "ifdef" => conditions.push(macros.contains_key(&name)),
            "ifndef" => conditions.push(!macros.contains_key(&name)),
            "else" => match conditions.last_mut() {
                Some(c) => *c = !*c,
                None => return Err(error("#else without #ifdef")),
            },
            "endif" => {
                conditions.pop().ok_or_else(|| error("#endif without #ifdef"))?;
            }
            _ if !active => {}
            "define" => {
                out.tokens.append(&mut expand_tokens(&std::mem::take(&mut pending), &macros, &mut Vec::new()));
                macros.insert(name, definition(&words[2..]));
            }
            "undef" => {
                out.tokens.append(&mut expand_tokens(&std::mem::take(&mut pending), &macros, &mut Vec::new()));
                macros.remove(&name);
            }
            "line" => {
                let number = name.parse::<u32>().map_err(|_| error("#line without a number"))?;
                let part = directive.split('"').nth(1).ok_or_else(|| error("#line without a name"))?;
                file = out.files.iter().position(|f| f == part).unwrap_or_else(|| {
                    out.files.push(part.into());
                    out.files.len() - 1
                });
                line = number - 1;
            }
            "include" | "pragma" => {}
            other => return Err(error(&format!("#{other} is not known to the source pass"))),
        }
    }
    out.tokens.append(&mut expand_tokens(&pending, &macros, &mut Vec::new()));
    Ok(out)
}

/// Tokens after the macro's name. A parenthesis that follows without a space opens parameters.
fn definition(rest: &[Token]) -> Macro {
    if !rest.first().is_some_and(|t| t.text == "(" && !t.space) {
        return Macro { parameters: None, body: rest.to_vec() };
    }
    let close = rest.iter().position(|t| t.text == ")").unwrap_or(rest.len() - 1);
    let parameters = rest[1..close].iter().filter(|t| t.text != ",").map(|t| t.text.clone()).collect();
    Macro { parameters: Some(parameters), body: rest[close + 1..].to_vec() }
}

fn expand_tokens(input: &[Token], macros: &HashMap<String, Macro>, active: &mut Vec<String>) -> Vec<Token> {
    let mut out = Vec::with_capacity(input.len());
    let mut i = 0;
    while i < input.len() {
        let token = &input[i];
        let found = macros.get(&token.text).filter(|_| !active.contains(&token.text));
        let replaced = match found {
            None => None,
            Some(Macro { parameters: None, body }) => Some((body.clone(), i + 1)),
            Some(Macro { parameters: Some(names), body }) => {
                arguments(input, i + 1).map(|(given, end)| (substitute(body, names, &given, macros, active), end))
            }
        };
        let Some((body, end)) = replaced else {
            out.push(token.clone());
            i += 1;
            continue;
        };
        active.push(token.text.clone());
        for (n, mut t) in expand_tokens(&body, macros, active).into_iter().enumerate() {
            // Errors and sanitizer reports point to the use of a macro.
            (t.file, t.line) = (token.file, token.line);
            t.space |= n == 0;
            out.push(t);
        }
        active.pop();
        i = end;
    }
    out
}

/// The arguments of a call whose parenthesis is at `open`, and the index after it.
fn arguments(input: &[Token], open: usize) -> Option<(Vec<Vec<Token>>, usize)> {
    if input.get(open)?.text != "(" {
        return None;
    }
    let (mut depth, mut given) = (0, vec![Vec::new()]);
    for (i, t) in input.iter().enumerate().skip(open) {
        match t.text.as_str() {
            "(" => depth += 1,
            ")" if depth == 1 => return Some((given, i + 1)),
            ")" => depth -= 1,
            "," if depth == 1 => {
                given.push(Vec::new());
                continue;
            }
            _ => {}
        }
        if i > open {
            given.last_mut()?.push(t.clone());
        }
    }
    None
}

fn substitute(
    body: &[Token],
    names: &[String],
    given: &[Vec<Token>],
    macros: &HashMap<String, Macro>,
    active: &mut Vec<String>,
) -> Vec<Token> {
    let pasted = |i: usize| i + 1 < body.len() && body[i].text == "#" && body[i + 1].text == "#";
    let mut out: Vec<Token> = Vec::new();
    let mut paste = false;
    let mut i = 0;
    while i < body.len() {
        if pasted(i) {
            (paste, i) = (true, i + 2);
            continue;
        }
        let argument = names.iter().position(|n| *n == body[i].text).and_then(|n| given.get(n));
        let mut piece = match argument {
            Some(tokens) if paste || pasted(i + 1) => tokens.clone(),
            Some(tokens) => expand_tokens(tokens, macros, active),
            None => vec![body[i].clone()],
        };
        if let Some(first) = piece.first_mut() {
            first.space |= argument.is_some() || body[i].space;
        }
        if paste && let (Some(last), false) = (out.last_mut(), piece.is_empty()) {
            last.text.push_str(&piece.remove(0).text);
        }
        paste = false;
        out.append(&mut piece);
        i += 1;
    }
    out
}
