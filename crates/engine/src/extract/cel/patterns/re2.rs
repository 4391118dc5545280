//! Reads a pattern of RE2, as Kubernetes has it, and writes it for the crate `regex`.
//!
//! The two dialects differ in what they accept and in what some signs mean: here `\d`, `\w`, `\s` and `\b` mean ASCII, classes have
//! no operators, and repetitions cannot be stacked. What RE2 refuses is refused, with the reason.

/// How deep groups may nest.
const MAX_DEPTH: usize = 30;

/// The most repetitions, also of repetitions inside of each other.
const MAX_REPEAT: u32 = 1000;

/// General categories of Unicode.
const CATEGORIES: &str = " C Cc Cf Cn Co Cs L LC Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs ";

const POSIX_CLASSES: &str =
    " alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit ";

/// A pattern of RE2 in the syntax of `regex`.
pub(super) struct Translated {
    pub(super) pattern: String,
    /// Whether it has a `\B`, which in `regex` may match within a character.
    pub(super) splits_characters: bool,
}

pub(super) fn translate(pattern: &str) -> Result<Translated, String> {
    let mut translator = Translator {
        chars: pattern.chars().collect(),
        at: 0,
        depth: 0,
        out: String::with_capacity(pattern.len() + 16),
        splits_characters: false,
    };
    translator.alternatives()?;
    if translator.at < translator.chars.len() {
        return Err("there is no opening ( for a )".into());
    }
    Ok(Translated { pattern: translator.out, splits_characters: translator.splits_characters })
}

struct Translator {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    out: String,
    splits_characters: bool,
}

/// What a repetition can follow.
#[derive(Clone, Copy)]
enum Atom {
    /// Nothing to repeat; a flag, or the beginning.
    None,
    /// Something that repeats what is inside of it this many times.
    Repeats(u32),
}

impl Translator {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(index, c)| self.chars.get(self.at + index) == Some(&c))
    }

    /// The text up to `end`, which is skipped.
    fn until(&mut self, end: &str) -> Option<String> {
        let mut text = String::new();
        while !self.starts_with(end) {
            text.push(self.peek()?);
            self.at += 1;
        }
        self.at += end.chars().count();
        Some(text)
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        self.out.push_str(&text.to_string());
    }

    fn literal(&mut self, c: char) {
        if c.is_ascii_alphanumeric() || !c.is_ascii() {
            self.out.push(c);
        } else {
            self.push(format_args!("\\x{{{:X}}}", u32::from(c)));
        }
    }

    /// Alternatives up to a `)` or the end. Returns how often the most repeated part is repeated.
    fn alternatives(&mut self) -> Result<u32, String> {
        let mut most = 1;
        loop {
            most = most.max(self.sequence()?);
            if self.peek() != Some('|') {
                return Ok(most);
            }
            self.at += 1;
            self.out.push('|');
        }
    }

    fn sequence(&mut self) -> Result<u32, String> {
        let (mut most, mut last, mut repeated) = (1, Atom::None, false);
        while let Some(c) = self.peek() {
            if matches!(c, '|' | ')') {
                break;
            }
            match self.repetition()? {
                Some(_) if repeated => {
                    return Err("repetitions cannot follow each other, as in a++ or a**".into());
                }
                Some((text, times)) => {
                    let Atom::Repeats(inner) = last else {
                        return Err(format!("there is nothing that {c} can repeat"));
                    };
                    let total = inner.saturating_mul(times.max(1));
                    if times > MAX_REPEAT || (times > 1 && total > MAX_REPEAT) {
                        return Err(format!("more than {MAX_REPEAT} repetitions"));
                    }
                    self.out.push_str(&text);
                    most = most.max(total);
                    repeated = true;
                }
                None => {
                    last = self.atom(c)?;
                    repeated = false;
                    if let Atom::Repeats(inner) = last {
                        most = most.max(inner);
                    }
                }
            }
        }
        Ok(most)
    }

    /// A repetition in the syntax of `regex`, and how often it repeats at most; 1 if there is no limit.
    fn repetition(&mut self) -> Result<Option<(String, u32)>, String> {
        let (mut text, times) = match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.at += 1;
                (c.to_string(), 1)
            }
            Some('{') => match self.counts() {
                Some((end, low, high)) => {
                    self.at = end;
                    let bound = high.unwrap_or(low).max(low);
                    if low > MAX_REPEAT || bound > MAX_REPEAT {
                        return Err(format!("more than {MAX_REPEAT} repetitions"));
                    }
                    match high {
                        Some(high) if high < low => {
                            return Err("the first number of a repetition is larger than the second".into());
                        }
                        Some(high) => (format!("{{{low},{high}}}"), bound),
                        None => (format!("{{{low},}}"), bound),
                    }
                }
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        if self.peek() == Some('?') {
            self.at += 1;
            text.push('?');
        }
        Ok(Some((text, times)))
    }

    /// `{2}`, `{2,}` or `{2,3}`: where it ends and its numbers. Anything else is a literal brace.
    fn counts(&self) -> Option<(usize, u32, Option<u32>)> {
        let number = |mut at: usize| {
            let start = at;
            while self.chars.get(at).is_some_and(char::is_ascii_digit) {
                at += 1;
            }
            let digits: String = self.chars.get(start..at)?.iter().collect();
            let leading_zero = digits.len() > 1 && digits.starts_with('0');
            if digits.is_empty() || leading_zero {
                return None;
            }
            Some((at, digits.parse::<u32>().unwrap_or(u32::MAX)))
        };
        let (at, low) = number(self.at + 1)?;
        match self.chars.get(at)? {
            '}' => Some((at + 1, low, Some(low))),
            ',' if self.chars.get(at + 1) == Some(&'}') => Some((at + 2, low, None)),
            ',' => {
                let (at, high) = number(at + 1)?;
                (self.chars.get(at) == Some(&'}')).then_some((at + 1, low, Some(high)))
            }
            _ => None,
        }
    }

    fn atom(&mut self, c: char) -> Result<Atom, String> {
        self.at += 1;
        match c {
            '(' => return self.group(),
            '[' => self.class()?,
            '\\' => return self.escape(),
            '.' | '^' | '$' => self.out.push(c),
            c => self.literal(c),
        }
        Ok(Atom::Repeats(1))
    }

    fn group(&mut self) -> Result<Atom, String> {
        if self.starts_with("?P<") || self.starts_with("?<") {
            self.at += if self.starts_with("?P") { 3 } else { 2 };
            let name = self.until(">").ok_or("the closing > of a group's name is missing")?;
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_name {
                return Err("the name of a group has letters, digits and _ only".into());
            }
            self.out.push('(');
        } else if self.peek() == Some('?') {
            self.at += 1;
            let mut flags = String::new();
            loop {
                let c = self.peek().ok_or("the closing ) is missing")?;
                self.at += 1;
                match c {
                    'i' | 'm' | 's' | 'U' => flags.push(c),
                    '-' if !flags.contains('-') => flags.push(c),
                    ':' | ')' if !flags.ends_with('-') => {
                        // `(?)` has no flags, and is not known to `regex`.
                        if c == ':' || !flags.is_empty() {
                            self.push(format_args!("(?{flags}{c}"));
                        }
                        if c == ')' {
                            // Flags for the rest of the group.
                            return Ok(Atom::None);
                        }
                        break;
                    }
                    _ => return Err("a group starts with (?:, (?P<name> or flags of imsU".into()),
                }
            }
        } else {
            self.out.push('(');
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("groups nest more than {MAX_DEPTH} levels"));
        }
        let most = self.alternatives()?;
        if self.peek() != Some(')') {
            return Err("the closing ) is missing".into());
        }
        self.at += 1;
        self.depth -= 1;
        self.out.push(')');
        Ok(Atom::Repeats(most))
    }

    /// What follows a backslash outside of a class.
    fn escape(&mut self) -> Result<Atom, String> {
        let c = self.peek().ok_or("nothing follows the \\")?;
        match c {
            'A' | 'z' => {
                self.out.push('\\');
                self.out.push(c);
            }
            'b' => self.out.push_str(r"(?-u:\b)"),
            'B' => {
                self.splits_characters = true;
                self.out.push_str(r"(?-u:\B)");
            }
            'Q' => {
                self.at += 1;
                // Without \E it goes on to the end.
                while let Some(c) = self.peek() {
                    if self.starts_with("\\E") {
                        self.at += 2;
                        break;
                    }
                    self.at += 1;
                    self.literal(c);
                }
                return Ok(Atom::Repeats(1));
            }
            'd' => self.out.push_str("[0-9]"),
            'D' => self.out.push_str("[^0-9]"),
            'w' => self.out.push_str("[0-9A-Za-z_]"),
            'W' => self.out.push_str("[^0-9A-Za-z_]"),
            's' => self.out.push_str(r"[\t\n\f\r ]"),
            'S' => self.out.push_str(r"[^\t\n\f\r ]"),
            'p' | 'P' => {
                self.unicode_class()?;
                return Ok(Atom::Repeats(1));
            }
            _ => {
                let c = self.character()?;
                self.literal(c);
                return Ok(Atom::Repeats(1));
            }
        }
        self.at += 1;
        Ok(Atom::Repeats(1))
    }

    /// `\pN`, `\p{Greek}`, `\P{Greek}` or `\p{^Greek}`, at the letter.
    fn unicode_class(&mut self) -> Result<(), String> {
        let mut negated = self.peek() == Some('P');
        self.at += 1;
        let mut name = match self.peek() {
            Some('{') => {
                self.at += 1;
                self.until("}").ok_or("the closing } of \\p{ is missing")?
            }
            Some(c) => {
                self.at += 1;
                c.to_string()
            }
            None => return Err("a class of characters is missing after \\p".into()),
        };
        if name.starts_with('^') {
            negated = !negated;
            name.remove(0);
        }
        let sign = if negated { 'P' } else { 'p' };
        let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
        if !is_word {
            return Err("there is no class of characters of the name behind \\p".into());
        }
        if name == "Any" {
            self.push(format_args!("\\{sign}{{Any}}"));
        } else if CATEGORIES.contains(&format!(" {name} ")) {
            self.push(format_args!("\\{sign}{{gc={name}}}"));
        } else {
            self.push(format_args!("\\{sign}{{sc={name}}}"));
        }
        Ok(())
    }

    /// The character that an escape stands for, at what follows the backslash.
    fn character(&mut self) -> Result<char, String> {
        let invalid = |c: char| format!("\\{c} means nothing here");
        let c = self.peek().ok_or("nothing follows the \\")?;
        self.at += 1;
        let is_octal = |c: Option<char>| c.is_some_and(|c| ('0'..='7').contains(&c));
        Ok(match c {
            'a' => '\u{7}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'x' => return self.hexadecimal(),
            // A single digit would refer to a group, which RE2 does not have.
            '1'..='7' if !is_octal(self.peek()) => return Err(invalid(c)),
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    if let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) {
                        code = code * 8 + digit;
                        self.at += 1;
                    } else {
                        break;
                    }
                }
                char::from_u32(code).ok_or_else(|| invalid(c))?
            }
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => c,
            c => return Err(invalid(c)),
        })
    }

    fn hexadecimal(&mut self) -> Result<char, String> {
        const PROBLEM: &str = "\\x needs two hexadecimal digits, or a number in braces";
        let digits = if self.peek() == Some('{') {
            self.at += 1;
            self.until("}").ok_or(PROBLEM)?
        } else {
            let digits: String = self.chars.iter().skip(self.at).take(2).collect();
            self.at += 2;
            if digits.chars().count() == 2 { digits } else { return Err(PROBLEM.into()) }
        };
        let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| is_number);
        code.and_then(char::from_u32).ok_or_else(|| PROBLEM.into())
    }

    /// A class, after its opening bracket.
    fn class(&mut self) -> Result<(), String> {
        const MISSING: &str = "the closing ] is missing";
        self.out.push('[');
        if self.peek() == Some('^') {
            self.at += 1;
            self.out.push('^');
        }
        let mut is_first = true;
        loop {
            let c = self.peek().ok_or(MISSING)?;
            if c == ']' && !is_first {
                break;
            }
            is_first = false;
            if self.starts_with("[:") && self.posix_class()? {
                continue;
            }
            if c == '\\' && self.class_in_class()? {
                continue;
            }
            let low = self.class_character()?;
            self.literal(low);
            let is_range =
                self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|next| *next != ']');
            if is_range {
                self.at += 1;
                let high = self.class_character()?;
                if high < low {
                    return Err("the end of a range of characters comes before its start".into());
                }
                self.out.push('-');
                self.literal(high);
            }
        }
        self.at += 1;
        self.out.push(']');
        Ok(())
    }

    fn class_character(&mut self) -> Result<char, String> {
        let c = self.peek().ok_or("the closing ] is missing")?;
        self.at += 1;
        if c == '\\' { self.character() } else { Ok(c) }
    }

    /// `[:alpha:]`; false if it is none.
    fn posix_class(&mut self) -> Result<bool, String> {
        let start = self.at;
        self.at += 2;
        let Some(name) = self.until(":]") else {
            self.at = start;
            return Ok(false);
        };
        let plain = name.strip_prefix('^').unwrap_or(&name);
        if plain.is_empty() || !POSIX_CLASSES.contains(&format!(" {plain} ")) {
            return Err("there is no class of characters of the name in [: and :]".into());
        }
        self.push(format_args!("[:{name}:]"));
        Ok(true)
    }

    /// `\d` and its like in a class; false if it is none.
    fn class_in_class(&mut self) -> Result<bool, String> {
        let text = match self.chars.get(self.at + 1) {
            Some('d') => "0-9",
            Some('D') => "[^0-9]",
            Some('w') => "0-9A-Za-z_",
            Some('W') => "[^0-9A-Za-z_]",
            Some('s') => r"\t\n\f\r ",
            Some('S') => r"[^\t\n\f\r ]",
            Some('p' | 'P') => {
                self.at += 1;
                self.unicode_class()?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        self.at += 2;
        self.out.push_str(text);
        Ok(true)
    }
}
