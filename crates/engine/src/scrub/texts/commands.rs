//! Credentials among the words of a command: `--password x`, `--token=x`, `-u user:x`, `mysql -px`, `-H 'X-Api-Key: x'`.
//!
//! The words are the items of a list, such as `args`, or those of a text.

use super::{super::values::is_credential, CredentialFinder, CredentialNames, occurrences};

/// Subcommands of `rabbitmqctl` and its like, which are followed by a user and a password.
const USER_AND_PASSWORD: &[&str] = &["add_user", "change_password"];

/// Words before the name of a program.
const BEFORE_PROGRAM: &[&str] =
    &["do", "then", "else", "sudo", "exec", "env", "time", "while", "until", "if", "ENV", "RUN", "CMD"];

/// How far the end of a substitution is looked for.
const MAX_SUBSTITUTION: usize = 256;

/// Flags that take a user and a password.
const USER_FLAGS: &[&str] = &["-u", "--user", "--proxy-user"];

/// A command, word by word.
#[derive(Default)]
pub(crate) struct CommandLine {
    program: Option<String>,
    /// The two words before.
    before: [String; 2],
    /// `login` was among the words.
    logs_in: bool,
    words: usize,
}

impl CommandLine {
    /// How many bytes of the next word are kept, if the rest is a credential; 0: all of it is one.
    pub(crate) fn next(&mut self, word: &str, names: &CredentialNames) -> Option<usize> {
        let is_here = |(kept, name): &(usize, String)| {
            let rest = word.get(*kept..).unwrap_or_default().trim_matches(['"', '\'']);
            is_credential(names.meaning(name), name.trim_start_matches('-'), rest)
        };
        let by_flag = self.value_of_flag(word).filter(is_here);
        let kept = by_flag.or_else(|| self.value_in(word).filter(is_here)).map(|(kept, _)| kept);
        if self.program.is_none() && !BEFORE_PROGRAM.contains(&word) && !word.contains('=') {
            let name = word.rsplit('/').next().unwrap_or_default();
            self.program = Some(name.to_owned());
        }
        self.logs_in |= word == "login";
        self.words += 1;
        self.before.rotate_left(1);
        word.clone_into(&mut self.before[1]);
        kept
    }

    fn program(&self) -> &str {
        self.program.as_deref().unwrap_or_default()
    }

    /// How many bytes of a word are before a value, which has a name or a flag in the same word, and that name.
    fn value_in(&self, word: &str) -> Option<(usize, String)> {
        let program = self.program();
        let takes_glued =
            program.starts_with("mysql") || program.starts_with("mariadb") || program == "sshpass";
        if takes_glued && word.starts_with("-p") && word.len() > 2 && !word.starts_with("-pass") {
            return Some(password(2));
        }
        // `--token=x` and `TOKEN=x` are one word: all of it belongs to the value.
        if let Some((name, value)) = word.split_once('=') {
            let start = word.len() - value.len();
            let is_name = !name.is_empty() && name.bytes().all(super::is_name);
            if USER_FLAGS.contains(&name) {
                return password_of(value, ':').map(|kept| password(start + kept));
            }
            // Several lines are a script, of which each line is judged.
            if is_name && !value.contains('\n') {
                return Some((start, name.to_owned()));
            }
        }
        None
    }

    /// How many bytes of a word are before a value, which belongs to the words before, and its name.
    fn value_of_flag(&self, word: &str) -> Option<(usize, String)> {
        let ([earlier, flag], program) = (&self.before, self.program());
        if word.starts_with('-') {
            return None;
        }
        let takes_password = match flag.as_str() {
            // `mc alias set name address user password`
            _ if program == "mc" && self.words == 6 => true,
            "-p" => self.logs_in || program == "sshpass",
            "-a" => program == "redis-cli",
            _ => USER_AND_PASSWORD.contains(&earlier.as_str()),
        };
        match flag.as_str() {
            _ if takes_password => Some(password(0)),
            flag if USER_FLAGS.contains(&flag) => {
                password_of(word, if program == "lftp" { ',' } else { ':' }).map(password)
            }
            "-H" | "--header" => {
                let (name, value) = word.split_once(':')?;
                Some((word.len() - value.trim_start().len(), name.to_owned()))
            }
            flag if is_long_flag(flag) => Some((0, flag.to_owned())),
            _ => None,
        }
    }
}

/// A value that is a password, whatever it is called.
fn password(kept: usize) -> (usize, String) {
    (kept, "password".to_owned())
}

/// How many bytes are before the password of a user; ids of users and groups are none.
fn password_of(text: &str, sign: char) -> Option<usize> {
    let (user, password) = text.split_once(sign)?;
    let is_id = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let are_ids = is_id(user) && is_id(password);
    let is_password = !user.is_empty() && !password.starts_with("//") && !are_ids;
    is_password.then_some(user.len() + sign.len_utf8())
}

/// Whether a word is a flag with a name, whose value is the next word: `--password`, `-token`.
fn is_long_flag(flag: &str) -> bool {
    let name = flag.trim_start_matches('-');
    name.len() < flag.len() && name.len() > 2 && name.bytes().all(super::is_name)
}

/// Whether the value behind a flag may be a credential.
pub(super) fn is_flag_of_credential(flag: &str, names: &CredentialNames) -> bool {
    is_long_flag(flag) && names.meaning(flag).is_credential()
}

impl CredentialFinder<'_> {
    /// Commands in a text.
    pub(super) fn commands(&mut self) {
        let bytes = self.bytes();
        let is_command = [" -", "add_user", "change_password", "mc alias set"];
        if !is_command.iter().any(|word| occurrences(bytes, word).next().is_some()) {
            return;
        }
        let mut command = CommandLine::default();
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'\n' | b';' | b'|' | b'&' => {
                    command = CommandLine::default();
                    at += 1;
                }
                b' ' | b'\t' | b'\r' | b'(' | b')' | b',' => at += 1,
                _ => {
                    let end = self.word_end(at);
                    let quoted = bytes[at] == b'"' || bytes[at] == b'\'';
                    let is_closed = quoted && end > at + 1 && bytes[end - 1] == bytes[at];
                    let (start, last) =
                        if quoted { (at + 1, end - usize::from(is_closed)) } else { (at, end) };
                    if let Some(kept) = command.next(self.part(start..last), self.names) {
                        self.add(start + kept..last);
                    }
                    at = end.max(at + 1);
                }
            }
        }
    }

    /// Where a word of a shell ends: quoted parts of it may have anything in them.
    fn word_end(&self, start: usize) -> usize {
        let bytes = self.bytes();
        let mut at = start;
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'\\' => at += 1,
                quote @ (b'"' | b'\'') => {
                    let escapes = *quote == b'"';
                    at += 1;
                    while bytes.get(at).is_some_and(|byte| byte != quote && *byte != b'\n') {
                        at += usize::from(escapes && bytes[at] == b'\\');
                        at += 1;
                    }
                }
                // $(…) and {{ … }} may have spaces in them.
                b'$' | b'{' if matches!(bytes.get(at + 1), Some(b'(' | b'{')) => {
                    let close = if bytes[at + 1] == b'(' { b')' } else { b'}' };
                    let end = bytes.len().min(at + MAX_SUBSTITUTION);
                    at = memchr::memchr2(close, b'\n', &bytes[at..end]).map_or(at, |close| at + close);
                }
                b';' | b'|' | b'&' => break,
                byte if byte.is_ascii_whitespace() => break,
                _ => {}
            }
            at += 1;
        }
        at.min(bytes.len())
    }
}
