//! Tokens: secrets that clients have in files, and servers know by their hashes.

use core::fmt::Write;
use std::path::Path;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::files::{self, TrustError};
use crate::identity::Identity;

/// What tokens begin with, so that those that search for leaked secrets can know them.
const PREFIX: &str = "rowmill_";
/// Longest token of others' making.
const TOKEN_BYTES: usize = 256;
/// Most tokens that a server knows: all are compared with each that comes.
const TOKENS: usize = 4096;

/// A secret. It is not shown by accident.
#[derive(Clone)]
pub struct Token(String);

impl core::fmt::Debug for Token {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Draws one of 256 bits.
    ///
    /// # Errors
    /// Where the kernel has no random numbers: a sentence.
    pub fn draw() -> Result<Token, &'static str> {
        let mut bytes = [0; 32];
        let drawn = SystemRandom::new().fill(&mut bytes);
        drawn.map_err(|_| "the kernel gives no random numbers")?;
        Ok(Token(PREFIX.to_owned() + &hexadecimal(&bytes)))
    }

    /// Reads one from a file that has nothing else.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn read(path: &Path) -> Result<Token, TrustError> {
        let bytes = files::read(path)?;
        let bytes = bytes.trim_ascii();
        let is_token = (1..=TOKEN_BYTES).contains(&bytes.len());
        let text = str::from_utf8(bytes)
            .ok()
            .filter(|text| is_token && text.bytes().all(|byte| byte.is_ascii_graphic()));
        let text = text.ok_or_else(|| {
            TrustError::content(
                path,
                "it is no token: it is to have one word, as `rowmill token new` writes it",
            )
        })?;
        Ok(Token(text.into()))
    }

    /// The secret itself, for who is to have it.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Its line in the file of a server's tokens.
    pub fn line(&self, of: &Identity) -> String {
        format!(
            "{} {} {}",
            of.role,
            of.name,
            hexadecimal(&hash(self.0.as_bytes()))
        )
    }
}

fn hash(secret: &[u8]) -> [u8; 32] {
    let hash = digest(&SHA256, secret);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("strings take everything");
        text
    })
}

/// Whom tokens name, as a server knows them: a line `ROLE NAME HASH` each, where the hash is SHA-256 in hexadecimal digits; lines that are
/// empty or begin with `#` say nothing.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Vec<([u8; 32], Identity)>);

impl Tokens {
    /// Reads them.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn read(path: &Path) -> Result<Tokens, TrustError> {
        let bytes = files::read(path)?;
        let text =
            str::from_utf8(&bytes).map_err(|_| TrustError::content(path, "it is no text"))?;
        Tokens::parse(text).map_err(|what| TrustError::content(path, what))
    }

    fn parse(text: &str) -> Result<Tokens, String> {
        let mut tokens: Vec<([u8; 32], Identity)> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let wrong = |what: &str| Err(format!("line {number}: {what}"));
            let (role, name, digits) = match words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [role, name, digits] => (role, name, digits),
                _ => return wrong("write ROLE NAME HASH, as `rowmill token new` prints it"),
            };
            let identity = match Identity::of(role, name) {
                Ok(identity) => identity,
                Err(error) => return wrong(&error.to_string()),
            };
            let Some(hash) = parsed(digits) else {
                return wrong(
                    "the hash is to have 64 hexadecimal digits, as `rowmill token new` prints it (it is not the token itself)",
                );
            };
            if tokens.iter().any(|(known, _)| *known == hash) {
                return wrong("this token is there twice");
            }
            if tokens.len() == TOKENS {
                return wrong(&format!("there are more than {TOKENS} tokens"));
            }
            tokens.push((hash, identity));
        }
        Ok(Tokens(tokens))
    }

    /// Whom a token names. How long that takes does not depend on what was presented, nor on whether it is known.
    pub fn find(&self, presented: &[u8]) -> Option<&Identity> {
        let presented = hash(presented);
        let mut found = u32::MAX;
        for (at, (hash, _)) in (0..).zip(&self.0) {
            found.conditional_assign(&at, presented.ct_eq(hash));
        }
        self.0.get(found as usize).map(|(_, identity)| identity)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn parsed(digits: &str) -> Option<[u8; 32]> {
    let is_whole = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let mut hash = [0; 32];
    for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
        let two = is_whole.then(|| &digits[at..at + 2])?;
        *byte = u8::from_str_radix(two, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_known_by_their_lines() {
        let who: Vec<Identity> = ["rowmill://dataplane/a", "rowmill://operator/b"]
            .map(|uri| uri.parse().unwrap())
            .into();
        let tokens: Vec<Token> = who.iter().map(|_| Token::draw().unwrap()).collect();
        let lines: Vec<String> = tokens.iter().zip(&who).map(|(t, w)| t.line(w)).collect();
        let known = Tokens::parse(&format!("# ours\n\n{}\n", lines.join("\n"))).unwrap();
        assert_eq!(known.len(), 2);
        for (token, who) in tokens.iter().zip(&who) {
            assert_eq!(known.find(token.secret().as_bytes()), Some(who));
            assert!(!format!("{token:?}").contains(&token.secret()[8..]));
        }
        assert_eq!(known.find(b""), None);
        assert_eq!(
            known.find(lines[0].split(' ').nth(2).unwrap().as_bytes()),
            None
        );
        let other = Token::draw().unwrap();
        assert_eq!(known.find(other.secret().as_bytes()), None);
    }

    #[test]
    fn what_is_no_line_is_told_with_its_number() {
        let hash = "0".repeat(64);
        for (line, why) in [
            ("operator a".into(), "write ROLE NAME HASH"),
            (format!("root a {hash}"), "names nobody"),
            (format!("operator a/b {hash}"), "names nobody"),
            ("operator a rowmill_0".into(), "not the token itself"),
            (format!("operator a {}+", &hash[1..]), "64 hexadecimal"),
            (format!("operator a é{}", &hash[2..]), "64 hexadecimal"),
            (format!("operator a {hash}\noperator b {hash}"), "twice"),
        ] {
            let error = Tokens::parse(&format!("# none\n{line}")).unwrap_err();
            assert!(error.contains(why), "{error}");
            assert!(error.starts_with("line 2: ") || why == "twice", "{error}");
        }
    }

    #[test]
    fn a_file_has_one_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "abc-1\n").unwrap();
        assert_eq!(Token::read(&path).unwrap().secret(), "abc-1");
        for wrong in ["", " \n", "a b", "a\nb", "\u{e9}", &"x".repeat(257)] {
            std::fs::write(&path, wrong).unwrap();
            let error = Token::read(&path).unwrap_err().to_string();
            assert!(error.contains("it is no token"), "{error}");
        }
    }
}
