//! Text to tokens. Punctuation is one character a token; the space before a token is kept, so that `<<=` prints as it was.

/// A token and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its characters.
    pub text: String,
    /// White space stood before it.
    pub space: bool,
    /// Index into the names of the source's parts.
    pub file: usize,
    /// Line in that part, from 1.
    pub line: u32,
}

impl Token {
    /// A name, keyword or number.
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
    }
}

/// The text without comments; their line breaks stay.
pub fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('/', Some('/')) => {
                while chars.next_if(|&c| c != '\n').is_some() {}
                out.push(' ');
            }
            ('/', Some('*')) => {
                let mut previous = ' ';
                chars.next();
                for c in chars.by_ref() {
                    if c == '\n' {
                        out.push('\n');
                    }
                    if previous == '*' && c == '/' {
                        break;
                    }
                    previous = c;
                }
                out.push(' ');
            }
            _ => out.push(c),
        }
    }
    out
}

/// Tokens of one line.
pub fn tokens(text: &str, file: usize, line: u32, out: &mut Vec<Token>) {
    let chars: Vec<char> = text.chars().collect();
    let mut i = 0;
    while i < chars.len() {
        let start = i;
        while i < chars.len() && chars[i].is_whitespace() {
            i += 1;
        }
        if i == chars.len() {
            break;
        }
        let space = i > start || start == 0;
        let begin = i;
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let number =
            chars[i].is_ascii_digit() || chars[i] == '.' && chars.get(i + 1).is_some_and(|c| c.is_ascii_digit());
        if number {
            let hex = chars[i] == '0' && matches!(chars.get(i + 1), Some('x' | 'X'));
            while i < chars.len() {
                let sign = matches!(chars[i], '+' | '-') && !hex && i > begin && matches!(chars[i - 1], 'e' | 'E');
                if !(word(chars[i]) || chars[i] == '.' || sign) {
                    break;
                }
                i += 1;
            }
        } else if word(chars[i]) {
            while i < chars.len() && word(chars[i]) {
                i += 1;
            }
        } else {
            i += 1;
        }
        out.push(Token { text: chars[begin..i].iter().collect(), space, file, line });
    }
}

/// Tokens as text on one line.
pub fn join(tokens: &[Token]) -> String {
    let mut out = String::new();
    for (i, t) in tokens.iter().enumerate() {
        if i > 0 && (t.space || t.is_word() && tokens[i - 1].is_word()) {
            out.push(' ');
        }
        out.push_str(&t.text);
    }
    out
}
