//! What the command prints: to pipes that may be closed, of texts that others wrote.

use std::borrow::Cow;
use std::io::{ErrorKind, Write, stderr, stdout};

use anyhow::{Context, Result};
use serde_json::Value;

/// Writes a text to standard output. A reader that has gone away (`rowmill ... | head`) has all that
/// it wanted, so that is no error.
///
/// # Errors
/// Where the text can't be written, to a full disk for example.
pub(crate) fn print(text: &str) -> Result<()> {
    print_to(&mut stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Numbers for JSON, each as [`number`] gives it.
pub(crate) fn numbers(values: &[f32]) -> Value {
    values.iter().map(|&value| number(value.into())).collect()
}

/// A number for JSON, which has none that are not finite: these are the strings `inf`, `-inf` and `nan`.
pub(crate) fn number(value: f64) -> Value {
    match value {
        _ if value.is_nan() => "nan".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        _ => value.into(),
    }
}

/// Writes a line to standard error, as far as that can be written; there is no other place to say so.
pub(crate) fn note(text: &str) {
    let _unheard = writeln!(stderr(), "{text}");
}

/// A text of the service or of a file in one line that can't command the terminal: control
/// characters, and those that hide or turn around what follows, are written as `\u{1b}`.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe)
}

/// As [`shown`], for texts that may have several lines.
pub(crate) fn shown_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_unsafe(c))
}

fn escaped(text: &str, wanted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&wanted) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if wanted(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.into()
}

fn is_unsafe(c: char) -> bool {
    let invisible = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    c.is_control() || invisible
}

/// An error and its causes in one text; a cause whose words the text before it holds already is left out.
pub(crate) fn explained(error: &anyhow::Error) -> String {
    let mut out = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if out.is_empty() {
            out = cause;
        } else if !out.contains(&cause) {
            out = format!("{out}: {cause}");
        }
    }
    shown_lines(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn readers_may_go_away_and_disks_may_not_be_full() {
        assert!(print_to(&mut Failing(ErrorKind::BrokenPipe), "x").is_ok());
        let error = print_to(&mut Failing(ErrorKind::StorageFull), "x").expect_err("full");
        assert!(
            error
                .to_string()
                .contains("cannot write to standard output")
        );
        let mut out = Vec::new();
        print_to(&mut out, "text\n").expect("written");
        assert_eq!(out, b"text\n");
    }

    #[test]
    fn numbers_that_json_does_not_have_are_strings() {
        let values = [1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
        assert_eq!(
            numbers(&values).to_string(),
            r#"[1.5,"inf","-inf","nan","nan"]"#
        );
        assert_eq!(number(0.1).to_string(), "0.1");
    }

    #[test]
    fn what_others_wrote_commands_no_terminal() {
        let cases = [
            ("plain \u{e4}\u{4e2d}", "plain \u{e4}\u{4e2d}"),
            ("\u{1b}[2Jgone", "\\u{1b}[2Jgone"),
            ("a\r\nb\tc\0", "a\\r\\nb\\tc\\u{0}"),
            ("\u{7f}\u{9b}31m", "\\u{7f}\\u{9b}31m"),
            ("\u{202e}txt\u{200b}", "\\u{202e}txt\\u{200b}"),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected);
        }
        assert_eq!(shown_lines("a\nb\u{1b}"), "a\nb\\u{1b}");
    }

    #[test]
    fn causes_are_said_once() {
        let said = anyhow::Error::from(io::Error::other("no such file"));
        let error = said.context("cannot open x: no such file; is it there?");
        assert_eq!(
            explained(&error),
            "cannot open x: no such file; is it there?"
        );
        let error = error.context("loading");
        assert_eq!(
            explained(&error),
            "loading: cannot open x: no such file; is it there?"
        );
    }
}
