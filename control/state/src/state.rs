//! The file.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use redb::{
    Builder, Database, DatabaseError, ReadOnlyTable, ReadableDatabase, StorageBackend,
    StorageError, TableDefinition, TableError,
};
use serde::{Deserialize, Serialize};

use crate::record::{self, Fault, Record};

/// Records by kind and key. Plain bytes both: of other types redb's encoding has changed between its versions.
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
type Records = ReadOnlyTable<&'static [u8], &'static [u8]>;
/// A key and its record, as they are stored.
type Stored = (Vec<u8>, Vec<u8>);
/// Bytes of the file that are kept in memory at most: all of it, as a rule.
const CACHE_BYTES: usize = 4 << 20;

/// Why the state can't be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process has it open.
    #[error("{} is in use by another process: one control plane at a time has a state", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is not what was written.
    #[error(
        "{} is damaged ({why}): bring back a copy of it, or let the control plane set it aside and begin anew",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// It is of another version of the file's format.
    #[error("{} has version {version} of the file's format, which this program can't read: open it with the program that wrote it, or bring back a copy", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u8,
    },
    /// The file system has failed.
    #[error("{} can't be read or written: {why}: see that its folder is there, that this program may write to both, and that the disk has room", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        why: std::io::Error,
    },
    /// A record can't be read.
    #[error("{}, {kind} `{key}`: {fault}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The record's kind.
        kind: &'static str,
        /// Its key.
        key: String,
        /// Why.
        fault: Fault,
    },
}

/// Records that a process has to itself.
#[derive(Debug)]
pub struct State {
    /// None where it could not be opened anew after a failure.
    database: Option<Database>,
    path: PathBuf,
    /// Whether it is the file that `path` names, which can be opened anew.
    is_file: bool,
    /// Which file it is: its device and number.
    identity: Option<(u64, u64)>,
    epoch: u64,
}

/// A change that is being put together.
#[derive(Debug, Default)]
pub struct Change {
    /// Keys, each with what is written there or `None` where what there is goes.
    entries: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// How often the state was opened.
#[derive(Serialize, Deserialize)]
struct Starts {
    epoch: u64,
}

impl Record for Starts {
    const KIND: &'static str = "starts";
    const VERSION: u32 = 1;
}

impl Change {
    /// Nothing.
    pub fn new() -> Change {
        Change::default()
    }

    /// A record is put under a key, in the place of what is there.
    pub fn put<R: Record>(&mut self, key: &str, record: &R) {
        let bytes = record::encode(record);
        self.entries.push((record::key_of::<R>(key), Some(bytes)));
    }

    /// What is under a key goes, if there is something.
    pub fn remove<R: Record>(&mut self, key: &str) {
        self.entries.push((record::key_of::<R>(key), None));
    }
}

impl State {
    /// Opens a file, or makes an empty one, and begins the next epoch.
    ///
    /// # Errors
    /// If another process has it, it is damaged, another version's, or can't be read or written. It is left as it is then.
    pub fn open(path: &Path) -> Result<State, StateError> {
        if !path.exists() {
            make(path)?;
        }
        let opened = builder().open(path);
        State::over(path, true, opened)
    }

    /// The same of something else than a file, which [`State::open`] would have made before. `path` is what it is called in errors.
    ///
    /// # Errors
    /// As [`State::open`].
    pub fn open_backend(path: &Path, backend: impl StorageBackend) -> Result<State, StateError> {
        let opened = builder().create_with_backend(backend);
        State::over(path, false, opened)
    }

    /// As [`State::open`], where a damaged file is renamed first: to its name with `.damaged-1` and so on behind it, which is
    /// returned with why. Nothing is ever removed.
    ///
    /// # Errors
    /// As [`State::open`], but for damage.
    pub fn open_or_set_aside(
        path: &Path,
    ) -> Result<(State, Option<(PathBuf, String)>), StateError> {
        let why = match State::open(path) {
            Ok(state) => return Ok((state, None)),
            Err(StateError::Damaged { why, .. }) => why,
            Err(error) => return Err(error),
        };
        let io = |why| StateError::Io {
            path: path.to_owned(),
            why,
        };
        let named = |number: u32| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".damaged-{number}"));
            PathBuf::from(name)
        };
        let free = (1..).map(named).find(|name| !name.exists());
        let aside = free.expect("there are more numbers than files");
        fs::rename(path, &aside).map_err(io)?;
        Ok((State::open(path)?, Some((aside, why))))
    }

    /// Where damaged states were put that [`State::open_or_set_aside`] found in the place of this one, those that are still there.
    pub fn set_aside(path: &Path) -> Vec<PathBuf> {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        let entries = fs::read_dir(folder.unwrap_or(Path::new(".")));
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".damaged-");
        let is_one = |path: &PathBuf| {
            let own = path.file_name().unwrap_or_default().as_encoded_bytes();
            own.starts_with(name.as_encoded_bytes())
        };
        let paths = entries.into_iter().flatten().filter_map(Result::ok);
        let mut aside: Vec<PathBuf> = paths.map(|entry| entry.path()).filter(is_one).collect();
        aside.sort_unstable();
        aside
    }

    fn over(
        path: &Path,
        is_file: bool,
        opened: Result<Database, DatabaseError>,
    ) -> Result<State, StateError> {
        let mut state = State {
            database: Some(opened.map_err(|error| unopened(path, error))?),
            path: path.to_owned(),
            is_file,
            identity: identity(path),
            epoch: 0,
        };
        let before: Option<Starts> = state.get("")?;
        state.epoch = before.map_or(0, |starts| starts.epoch) + 1;
        let mut change = Change::new();
        change.put("", &Starts { epoch: state.epoch });
        state.change(change)?;
        Ok(state)
    }

    /// The number of this start, from 1: larger than that of all before it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What it is called in errors: the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is still the file that its path names.
    ///
    /// # Errors
    /// If another one is there, or none: what is written would not be there at the next start.
    pub fn look(&self) -> Result<(), StateError> {
        match self.is_file && identity(&self.path) != self.identity {
            true => Err(StateError::Io {
                path: self.path.clone(),
                why: std::io::Error::other(
                    "another file is there than was opened, or none; put it back, or start anew",
                ),
            }),
            false => Ok(()),
        }
    }

    /// Makes a change: when it returns, all of it is on the disk.
    ///
    /// # Errors
    /// As [`look`](Self::look), and if the file can't be written: the change may be there or not, as a whole. A later change opens the file anew first, since the
    /// disk may have room again.
    pub fn change(&mut self, change: Change) -> Result<(), StateError> {
        self.look()?;
        match self.commit(&change) {
            // redb takes nothing more after a failure.
            Err(redb::Error::PreviousIo | redb::Error::DatabaseClosed) if self.is_file => {
                // Its lock is given back first.
                self.database = None;
                let opened = builder().open(&self.path);
                self.database = Some(opened.map_err(|error| unopened(&self.path, error))?);
                self.commit(&change)
            }
            done => done,
        }
        .map_err(|error| self.failed(error))
    }

    fn commit(&self, change: &Change) -> Result<(), redb::Error> {
        let mut transaction = self.database()?.begin_write()?;
        // What was there before stays readable whatever becomes of the new, and needs no checksum to be told from it.
        transaction.set_two_phase_commit(true);
        {
            let mut records = transaction.open_table(RECORDS)?;
            for (key, value) in &change.entries {
                match value {
                    Some(value) => records.insert(&key[..], &value[..])?,
                    None => records.remove(&key[..])?,
                };
            }
        }
        Ok(transaction.commit()?)
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    /// The record under a key.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn get<R: Record>(&self, key: &str) -> Result<Option<R>, StateError> {
        let stored = || -> Result<Option<Vec<u8>>, redb::Error> {
            let Some(records) = self.records()? else {
                return Ok(None);
            };
            let value = records.get(&record::key_of::<R>(key)[..])?;
            Ok(value.map(|value| value.value().to_vec()))
        };
        let bytes = stored().map_err(|error| self.failed(error))?;
        bytes.map(|bytes| self.decode(key, &bytes)).transpose()
    }

    /// All records of a kind with their keys, in the keys' order.
    ///
    /// # Errors
    /// If one can't be read.
    pub fn all<R: Record>(&self) -> Result<Vec<(String, R)>, StateError> {
        let first = record::key_of::<R>("");
        let stored = || -> Result<Vec<Stored>, redb::Error> {
            let mut found = Vec::new();
            if let Some(records) = self.records()? {
                for entry in records.range(&first[..]..)? {
                    let (key, value) = entry?;
                    let Some(key) = key.value().strip_prefix(&first[..]) else {
                        break;
                    };
                    found.push((key.to_vec(), value.value().to_vec()));
                }
            }
            Ok(found)
        };
        let stored = stored().map_err(|error| self.failed(error))?;
        let decoded = stored.into_iter().map(|(key, bytes)| {
            let key = String::from_utf8_lossy(&key).into_owned();
            let record = self.decode(&key, &bytes)?;
            Ok((key, record))
        });
        decoded.collect()
    }

    /// The records, once there are some.
    fn records(&self) -> Result<Option<Records>, redb::Error> {
        match self.database()?.begin_read()?.open_table(RECORDS) {
            Ok(records) => Ok(Some(records)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn decode<R: Record>(&self, key: &str, bytes: &[u8]) -> Result<R, StateError> {
        record::decode(bytes).map_err(|fault| StateError::Record {
            path: self.path.clone(),
            kind: R::KIND,
            key: key.to_owned(),
            fault,
        })
    }

    fn failed(&self, error: redb::Error) -> StateError {
        match error {
            redb::Error::Io(why) => StateError::Io {
                path: self.path.clone(),
                why,
            },
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => StateError::Io {
                path: self.path.clone(),
                why: std::io::Error::other("it could not be read or written before"),
            },
            error => StateError::Damaged {
                path: self.path.clone(),
                why: error.to_string(),
            },
        }
    }
}

/// Which file a path names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let about = fs::metadata(path).ok()?;
    Some((about.dev(), about.ino()))
}

/// Makes an empty file: under another name first, since a file that is made in part is none.
fn make(path: &Path) -> Result<(), StateError> {
    let io = |why| StateError::Io {
        path: path.to_owned(),
        why,
    };
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let made = tempfile::Builder::new()
        .prefix(".new-state-")
        .tempfile_in(folder)
        .map_err(io)?;
    match builder().create(made.path()) {
        Ok(database) => drop(database),
        Err(DatabaseError::Storage(error)) => return Err(failed(path, error)),
        Err(error) => return Err(io(std::io::Error::other(error))),
    }
    match made.persist_noclobber(path) {
        Ok(_) => {}
        // Another process was faster: it has it then, or will be found to have left it.
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(io(error.error)),
    }
    // The name, too, has to be there after power went.
    fs::File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io)
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    // All checksums are looked at, lest damage be found in the middle of something: the file is small.
    builder.set_check_integrity_on_open(true);
    builder
}

/// Why it can't be opened.
fn unopened(path: &Path, error: DatabaseError) -> StateError {
    let owned = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            StateError::InUse { path: owned }
        }
        DatabaseError::UpgradeRequired(version) => StateError::Format {
            path: owned,
            version,
        },
        DatabaseError::Storage(error) => failed(path, error),
        error => StateError::Damaged {
            path: owned,
            why: error.to_string(),
        },
    }
}

/// What a failure to open means.
fn failed(path: &Path, error: StorageError) -> StateError {
    let path = path.to_owned();
    match error {
        // redb tells so of a file that is none of its own, or shorter than it says.
        StorageError::Io(source)
            if matches!(
                source.kind(),
                ErrorKind::InvalidData | ErrorKind::UnexpectedEof
            ) =>
        {
            let why = source.to_string();
            StateError::Damaged { path, why }
        }
        StorageError::Io(why) => StateError::Io { path, why },
        error => {
            let why = error.to_string();
            StateError::Damaged { path, why }
        }
    }
}
