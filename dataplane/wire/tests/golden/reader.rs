//! Reads the golden vectors (`*.hex`): lines `= name`, bytes in hex, `#` comments, and in
//! `malformed.hex` changes to a good message.

use std::fmt::Debug;
use std::path::Path;
use std::str::FromStr;

/// A message of a golden file.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// What stands before the colon of its first line.
    pub(crate) name: String,
    /// What stands after it: nothing, or kind and expected status.
    pub(crate) expected: String,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// The kinds of messages that have a file of good ones.
pub(crate) const KINDS: [&str; 4] = ["request", "completion", "control", "immediate"];

/// The good messages of a kind.
pub(crate) fn good(folder: &Path, kind: &str) -> Vec<Message> {
    read(&folder.join(kind).with_extension("hex"), |name| {
        panic!("{kind}.hex: {name} must stand alone")
    })
}

/// The messages that are to be refused: each with its kind and the expected status.
pub(crate) fn malformed(folder: &Path) -> Vec<(String, String, Message)> {
    let all: Vec<Message> = KINDS.iter().flat_map(|kind| good(folder, kind)).collect();
    let find = |name: &str| -> Vec<u8> {
        let found = all.iter().find(|m| m.name == name);
        found
            .unwrap_or_else(|| panic!("no golden message {name}"))
            .bytes
            .clone()
    };
    read(&folder.join("malformed.hex"), find)
        .into_iter()
        .map(|message| {
            let (kind, status) = message.expected.split_once(' ').expect("kind and status");
            (kind.to_owned(), status.to_owned(), message)
        })
        .collect()
}

fn read(path: &Path, find: impl Fn(&str) -> Vec<u8>) -> Vec<Message> {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut messages: Vec<Message> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(title) = line.strip_prefix("= ") {
            let (name, expected) = title.split_once(": ").unwrap_or((title, ""));
            messages.push(Message {
                name: name.to_owned(),
                expected: expected.to_owned(),
                bytes: Vec::new(),
            });
        } else if !line.is_empty() {
            let message = messages.last_mut().expect("a name before the first byte");
            change(&mut message.bytes, line, &find);
        }
    }
    messages
}

fn change(bytes: &mut Vec<u8>, line: &str, find: &impl Fn(&str) -> Vec<u8>) {
    if let Some(name) = line.strip_prefix("from ") {
        *bytes = find(name);
    } else if let Some(len) = line.strip_prefix("cut ") {
        bytes.truncate(number(len));
    } else if let Some(len) = line.strip_prefix("grow ") {
        bytes.resize(number(len), 0);
    } else if let Some(rest) = line.strip_prefix("at ") {
        let (at, new) = rest.split_once(": ").expect("at N: bytes");
        let (at, new) = (number::<usize>(at), hex(new));
        assert_ne!(bytes[at..at + new.len()], new, "`{line}` changes nothing");
        bytes[at..at + new.len()].copy_from_slice(&new);
    } else {
        bytes.extend(hex(line));
    }
}

fn number<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect("a number")
}

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
        .collect()
}
