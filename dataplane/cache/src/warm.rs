//! Which rows were in a cache, in a small file, so that they are loaded first at the next start.
//!
//! ```text
//! | "rmwarm1\n" | crc32 of what follows: u32 | tables: u16 | generation: name |
//! and for each table: | its name | rows: u32 | their numbers: u32 each |
//! ```
//!
//! All numbers are little-endian; a name is its length (u16) and as many bytes of UTF-8. Nothing follows.
//!
//! The file only makes a start faster. So one that is damaged is an error that says to go on without it, and one that was
//! written half is not there at all: it gets its name when it is whole and on the disk.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"rmwarm1\n";
const HEAD_BYTES: usize = MAGIC.len() + size_of::<u32>();
/// Longest file that is read: the numbers of a quarter of a billion rows.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Rows that a file may list at most, of all tables: half of what is read, so that all names fit besides.
pub const ROWS_MAX: usize = FILE_BYTES_MAX as usize / 2 / size_of::<u32>();

/// The rows of a table that are to be loaded first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmTable {
    /// The table's name.
    pub name: String,
    /// Its rows by their numbers, those first that are wanted most.
    pub rows: Vec<u32>,
}

/// What was in a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warm {
    /// The generation that has the rows: those of another one may have other numbers.
    pub generation: String,
    /// Its cached tables.
    pub tables: Vec<WarmTable>,
}

/// Why there is nothing of what was in a cache.
#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    /// The file can't be read or written.
    #[error("{path}: {source}{advice}", path = path.display(), advice = advice(source))]
    Io {
        /// The file or its folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what was written.
    #[error("{path} is damaged: {fault}; the cache begins empty, and the next list takes its place", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: WarmFault,
    },
}

/// What is wrong with the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WarmFault {
    /// It is another file, or longer than one can be.
    #[error("it is no list of warm rows")]
    Foreign,
    /// It was changed, or cut off.
    #[error("its checksum does not match")]
    Checksum,
    /// The checksum is right, and what it says makes no sense.
    #[error("its lengths do not agree")]
    Lengths,
}

impl Warm {
    /// As the bytes of a file.
    ///
    /// # Panics
    /// If a name has more than 65,535 bytes, or there are more tables than that.
    pub fn encode(&self) -> Vec<u8> {
        let names: usize = (self.tables.iter()).map(|table| table.name.len()).sum();
        let rows: usize = (self.tables.iter()).map(|table| table.rows.len()).sum();
        // A table has the lengths of its name and its list besides, and there are those of the head.
        let rest = HEAD_BYTES + 4 + self.generation.len() + 6 * self.tables.len();
        let bytes = rest + names + rows * size_of::<u32>();
        let mut out = Vec::with_capacity(bytes);
        out.extend(MAGIC);
        out.extend([0; 4]);
        let tables = u16::try_from(self.tables.len()).expect("a model has fewer tables");
        out.extend(tables.to_le_bytes());
        put_name(&mut out, &self.generation);
        for table in &self.tables {
            put_name(&mut out, &table.name);
            let rows = u32::try_from(table.rows.len()).expect("a table has fewer rows");
            out.extend(rows.to_le_bytes());
            out.extend(table.rows.iter().flat_map(|row| row.to_le_bytes()));
        }
        let checksum = crc32fast::hash(&out[HEAD_BYTES..]);
        out[MAGIC.len()..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
        debug_assert_eq!(out.len(), bytes, "memory is taken once");
        out
    }

    /// What the bytes of a file say.
    ///
    /// # Errors
    /// [`WarmFault`]: they are not what [`Warm::encode`] makes of anything.
    pub fn decode(bytes: &[u8]) -> Result<Warm, WarmFault> {
        let behind = match bytes.strip_prefix(MAGIC) {
            Some(behind) => behind,
            // What a crash of the machine may leave of one, which is not another's.
            None if MAGIC.starts_with(bytes) || is_zero(bytes) => return Err(WarmFault::Checksum),
            None => return Err(WarmFault::Foreign),
        };
        let (checksum, mut rest) = behind.split_first_chunk().ok_or(WarmFault::Checksum)?;
        if crc32fast::hash(rest) != u32::from_le_bytes(*checksum) {
            return Err(WarmFault::Checksum);
        }
        let whole = |rest: &mut &[u8]| {
            let tables = u16::from_le_bytes(take(rest)?);
            let generation = take_name(rest)?;
            let table = |_| take_table(rest);
            let tables = (0..tables).map(table).collect::<Option<Vec<WarmTable>>>()?;
            Some(Warm { generation, tables })
        };
        let warm = whole(&mut rest).filter(|_| rest.is_empty());
        warm.ok_or(WarmFault::Lengths)
    }

    /// Reads a file. `None`: there is none.
    ///
    /// # Errors
    /// [`WarmError`].
    pub fn read(path: &Path) -> Result<Option<Warm>, WarmError> {
        // What is no file is not opened, since a pipe would wait for a writer.
        let about = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            about => about.map_err(io_error(path))?,
        };
        if !about.is_file() {
            let (path, fault) = (path.to_owned(), WarmFault::Foreign);
            return Err(WarmError::Damaged { path, fault });
        }
        let file = File::open(path).map_err(io_error(path))?;
        let mut bytes = Vec::with_capacity(about.len().min(FILE_BYTES_MAX) as usize + 1);
        let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(io_error(path))?;
        let warm = match bytes.len() as u64 {
            ..=FILE_BYTES_MAX => Warm::decode(&bytes),
            _ => Err(WarmFault::Foreign),
        };
        let damaged = |fault| WarmError::Damaged {
            path: path.to_owned(),
            fault,
        };
        warm.map(Some).map_err(damaged)
    }

    /// Writes a file in the place of the one before, which stays as it is until the new one is on the disk. Of two that write the same
    /// file at a time one may fail.
    ///
    /// # Errors
    /// [`WarmError::Io`]. The file before is still there.
    pub fn write(&self, path: &Path) -> Result<(), WarmError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        // The path may have come to lead to something else, such as the socket that clients connect to.
        if path.metadata().is_ok_and(|about| !about.is_file()) {
            let not_a_file =
                io::Error::other("there is something that is no file; choose another path");
            return Err(io_error(path)(not_a_file));
        }
        let write = |mut file: File| {
            file.write_all(&self.encode())?;
            file.sync_all()
        };
        // One that was left by a writer that was interrupted goes first, or whatever is there: a pipe would be waited at, and a link lead
        // to a file of somebody else.
        let gone = match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let made = gone.and_then(|()| File::create_new(&partial));
        let written = write(made.map_err(io_error(path))?);
        let written = written.and_then(|()| fs::rename(&partial, path));
        if written.is_err() {
            // On a disk that is full it would take room for nothing.
            let _ = fs::remove_file(&partial);
        }
        written.map_err(io_error(path))?;
        let folder = path.parent().filter(|folder| folder != &Path::new(""));
        let folder = folder.unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(io_error(folder))
    }
}

/// Whether what is there was written by somebody else, as far as its first bytes tell: nothing is not, nor a list that was cut off, nor
/// zeros alone, which a crash of the machine may leave of one. What can't be looked at is.
pub fn is_foreign(path: &Path) -> bool {
    match fs::metadata(path) {
        Err(_) => return false,
        Ok(about) if !about.is_file() => return true,
        Ok(_) => {}
    }
    let mut first = Vec::new();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    let read = (&file).take(MAGIC.len() as u64).read_to_end(&mut first);
    read.is_ok() && !MAGIC.starts_with(&first) && !(is_zero(&first) && is_zero_behind(&file))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Whether the rest of a file is zeros, and no more than a list can have.
fn is_zero_behind(file: &File) -> bool {
    let mut rest = BufReader::new(file.take(FILE_BYTES_MAX));
    let mut read = 0;
    loop {
        match rest.fill_buf() {
            Ok([]) => return read < FILE_BYTES_MAX as usize,
            Ok(bytes) if is_zero(bytes) => read += bytes.len(),
            _ => return false,
        }
        let taken = rest.buffer().len();
        rest.consume(taken);
    }
}

/// What to do about it, where the kernel's word does not tell.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::FileTooLarge => {
            "; raise the limit (`ulimit -f`, LimitFSIZE= of systemd), or choose another file system"
        }
        io::ErrorKind::NotADirectory => "; name a file in a folder",
        _ => "",
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> WarmError {
    move |source| WarmError::Io {
        path: path.to_owned(),
        source,
    }
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    let len = u16::try_from(name.len()).expect("names are short");
    out.extend(len.to_le_bytes());
    out.extend(name.as_bytes());
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}

fn take_name(rest: &mut &[u8]) -> Option<String> {
    let len = u16::from_le_bytes(take(rest)?);
    let (name, behind) = rest.split_at_checked(len.into())?;
    *rest = behind;
    String::from_utf8(name.to_vec()).ok()
}

fn take_table(rest: &mut &[u8]) -> Option<WarmTable> {
    let name = take_name(rest)?;
    let rows = u32::from_le_bytes(take(rest)?) as usize;
    // What is claimed is there, before memory is taken for it.
    let bytes = rows.checked_mul(size_of::<u32>())?;
    let (numbers, behind) = rest.split_at_checked(bytes)?;
    *rest = behind;
    let (numbers, _) = numbers.as_chunks();
    let rows = numbers.iter().map(|&row| u32::from_le_bytes(row));
    Some(WarmTable {
        name,
        rows: rows.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warm() -> Warm {
        let table = |name: &str, rows: &[u32]| WarmTable {
            name: name.into(),
            rows: rows.into(),
        };
        Warm {
            generation: "7".into(),
            tables: vec![table("a", &[5, 1, 1 << 30]), table("späte", &[])],
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for warm in [warm(), Warm::default()] {
            assert_eq!(Warm::decode(&warm.encode()), Ok(warm));
        }
    }

    #[test]
    fn whatever_is_cut_off_or_changed_is_seen() {
        let bytes = warm().encode();
        for len in 0..bytes.len() {
            let fault = Warm::decode(&bytes[..len]).unwrap_err();
            assert_eq!(fault, WarmFault::Checksum, "{len} bytes");
        }
        assert_eq!(Warm::decode(b"notes"), Err(WarmFault::Foreign));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(Warm::decode(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn lengths_that_do_not_agree_are_seen() {
        let sealed = |mut bytes: Vec<u8>| {
            let checksum = crc32fast::hash(&bytes[HEAD_BYTES..]);
            bytes[MAGIC.len()..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
            Warm::decode(&bytes)
        };
        let bytes = warm().encode();
        assert_eq!(sealed(bytes.clone()), Ok(warm()));
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(sealed(longer), Err(WarmFault::Lengths));
        let mut shorter = bytes.clone();
        shorter.truncate(bytes.len() - 1);
        assert_eq!(sealed(shorter), Err(WarmFault::Lengths));
        // More rows than there are bytes for, and more tables.
        assert_eq!(bytes[19..24], [b'a', 3, 0, 0, 0]);
        for (at, claim) in [(20, 0xff), (HEAD_BYTES, 3)] {
            let mut claims = bytes.clone();
            claims[at] = claim;
            assert_eq!(sealed(claims), Err(WarmFault::Lengths), "at {at}");
        }
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let said = warm().write(&path).unwrap_err().to_string();
        assert!(said.contains("no file"), "{said}");
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    }

    /// Where this test, run again as a process of its own, writes lists until it is killed.
    const WRITES: &str = "ROWMILL_TEST_WRITES_WARM";

    /// List number `n`: its rows tell.
    fn numbered(n: u32) -> Warm {
        let rows = (0..50_000).map(|row| row ^ n).collect();
        let name = "a".into();
        Warm {
            generation: n.to_string(),
            tables: vec![WarmTable { name, rows }],
        }
    }

    #[test]
    fn a_writer_that_is_killed_leaves_a_whole_list() {
        use std::process::{Command, Stdio};
        use std::time::{Duration, Instant};
        if let Some(path) = std::env::var_os(WRITES) {
            for n in 2.. {
                numbered(n).write(Path::new(&path)).unwrap();
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let (path, partial) = (folder.path().join("warm"), "warm.partial");
        let partial = folder.path().join(partial);
        let (mut rounds, mut midway, mut random) = (0, 0, 1_u64);
        // Until it was killed in the middle of a list often enough, which is where it spends its time.
        while midway < 10 {
            rounds += 1;
            assert!(rounds < 200, "{midway} of {rounds} were killed midway");
            let _none = fs::remove_file(&partial);
            numbered(1).write(&path).unwrap();
            let mut writer = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "warm::tests::a_writer_that_is_killed_leaves_a_whole_list",
                ])
                .env(WRITES, &path)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let began = Instant::now();
            while !partial.exists() && began.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_micros(100));
            }
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            std::thread::sleep(Duration::from_micros(random >> 51));
            let has_begun = partial.exists() || began.elapsed() < Duration::from_secs(20);
            writer.kill().unwrap();
            writer.wait().unwrap();
            assert!(has_begun, "nothing is written");
            midway += u32::from(partial.exists());
            let found = Warm::read(&path).unwrap().expect("a list");
            let n = found.generation.parse().unwrap();
            assert!(n > 0 && found == numbered(n), "list {n}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warm");
        assert_eq!(Warm::read(&path).unwrap(), None);
        warm().write(&path).unwrap();
        assert_eq!(Warm::read(&path).unwrap(), Some(warm()));
        // What an interrupted writer leaves is in nobody's way.
        let partial = folder.path().join("warm.partial");
        fs::write(&partial, [1; 10_000]).unwrap();
        assert_eq!(Warm::read(&path).unwrap(), Some(warm()));
        Warm::default().write(&path).unwrap();
        assert_eq!(Warm::read(&path).unwrap(), Some(Warm::default()));
        assert!(!partial.exists());
        // Nor a link, which leads to something else, nor a pipe, which nobody reads.
        let other = folder.path().join("other");
        fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &partial).unwrap();
        warm().write(&path).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        let made = std::process::Command::new("mkfifo")
            .arg(&partial)
            .status()
            .unwrap();
        assert!(made.success());
        Warm::default().write(&path).unwrap();
        assert_eq!(Warm::read(&path).unwrap(), Some(Warm::default()));
        // Where no file can be made, the one before stays.
        fs::create_dir(&partial).unwrap();
        assert!(matches!(warm().write(&path), Err(WarmError::Io { .. })));
        assert_eq!(Warm::read(&path).unwrap(), Some(Warm::default()));
        assert!(!is_foreign(&path) && !is_foreign(&folder.path().join("none")));
        fs::write(&path, &MAGIC[..3]).unwrap();
        assert!(!is_foreign(&path) && is_foreign(folder.path()));
        fs::write(&path, [0; 100_000]).unwrap();
        assert!(!is_foreign(&path));
        let error = Warm::read(&path).unwrap_err();
        assert!(
            error.to_string().contains("is damaged: its checksum"),
            "{error}"
        );
        let mut zeros_and_more = [0; 100_000];
        zeros_and_more[99_999] = 1;
        fs::write(&path, zeros_and_more).unwrap();
        assert!(is_foreign(&path));
        fs::write(&path, [1; 10]).unwrap();
        assert!(is_foreign(&path));
        let error = Warm::read(&path).unwrap_err();
        assert!(error.to_string().contains("begins empty"), "{error}");
        let error = Warm::read(&partial).unwrap_err();
        assert!(error.to_string().contains("no list"), "{error}");
    }
}
