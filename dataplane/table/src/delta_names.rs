//! How deltas that are kept are named: a directory for each model, and a file for each sequence number. And such directories.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Makes a directory, with those above it that there are not, for nobody else to look into; the names of all of them are on the disk then.
///
/// # Errors
/// The kernel's.
pub fn make_private(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let above = directory.parent().filter(|above| *above != Path::new(""));
    if let Some(above) = above {
        make_private(above)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_directory(above.unwrap_or(Path::new("."))),
    }
}

/// Returns when the names in a directory are on the disk.
///
/// # Errors
/// The kernel's.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// A model's name as that of a directory: bytes that may mean something else are written as `%` and two hexadecimal digits.
pub fn delta_folder(model: &str) -> String {
    let mut name = String::new();
    for (at, byte) in model.bytes().enumerate() {
        let is_plain =
            byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && at > 0);
        match is_plain {
            true => name.push(char::from(byte)),
            false => name += &format!("%{byte:02x}"),
        }
    }
    name
}

/// The model whose [`delta_folder`] has this name; none where no model's has.
pub fn delta_model(folder: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = folder.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = rest.split_at_checked(2);
            let (digits, after) = digits?;
            bytes.push(u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
        }
    }
    let model = String::from_utf8(bytes).ok()?;
    (!model.is_empty() && delta_folder(&model) == folder).then_some(model)
}

/// The name of the file of a generation's delta; names are in the order of their numbers.
pub fn delta_file_name(sequence: u64) -> String {
    format!("{sequence:020}.delta")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_by_one_directory_each() {
        let cases = [
            ("dlrm-v2", "dlrm-v2"),
            ("a.b_c", "a.b_c"),
            ("..", "%2e."),
            ("a/b", "a%2fb"),
            ("a%2fb", "a%252fb"),
            ("ü", "%c3%bc"),
        ];
        for (model, name) in cases {
            assert_eq!(delta_folder(model), name);
            assert_eq!(delta_model(name).as_deref(), Some(model));
        }
        for name in [
            "", ".", "..", "a/b", "%", "%2", "%zz", "%+2", "%2E.", "%61", "%ff", "ü",
        ] {
            assert_eq!(delta_model(name), None, "{name}");
        }
    }
}
