//! A disk in memory, for tests: what is left of it after a kill at any operation, or when power went, is known.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

/// A disk in memory that ends at one of its operations.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<Image>>);

/// What is on it.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// What is found there after a kill.
    pub now: Vec<u8>,
    /// What is there in any case when power goes.
    pub synced: Vec<u8>,
    /// What has been done since it was last synced.
    pub since: Vec<Done>,
    /// How many operations there were.
    pub operations: usize,
    /// The operation that is not done any more, nor any after it.
    pub end: Option<usize>,
    /// The one at which it ended.
    pub last: Option<Done>,
}

/// An operation.
#[derive(Clone, Debug)]
pub enum Done {
    /// It is so long from then on.
    Length(u64),
    /// These bytes lie there from then on.
    Write(u64, Vec<u8>),
}

impl Image {
    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.end.is_some_and(|end| self.operations > end)
    }
}

impl Done {
    /// Does it.
    pub fn to(&self, bytes: &mut Vec<u8>) {
        match self {
            Done::Length(length) => bytes.resize(*length as usize, 0),
            Done::Write(offset, data) => {
                let end = *offset as usize + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset as usize..end].copy_from_slice(data);
            }
        }
    }
}

impl Disk {
    /// One with these bytes, which ends at an operation, if it does.
    pub fn of(bytes: Vec<u8>, end: Option<usize>) -> Disk {
        let image = Image {
            now: bytes.clone(),
            synced: bytes,
            end,
            ..Image::default()
        };
        Disk(Arc::new(Mutex::new(image)))
    }

    /// What is on it, and when it ends, which can be changed.
    ///
    /// # Panics
    /// If another thread has panicked meanwhile.
    pub fn image(&self) -> MutexGuard<'_, Image> {
        self.0.lock().expect("nobody panics with it")
    }

    fn step(&self, done: Option<Done>) -> io::Result<MutexGuard<'_, Image>> {
        let mut image = self.image();
        if image.end.is_some_and(|end| image.operations >= end) {
            if image.end == Some(image.operations) {
                image.last = done;
                image.operations += 1;
            }
            return Err(io::Error::other("the process was killed"));
        }
        image.operations += 1;
        if let Some(done) = done {
            done.to(&mut image.now);
            image.since.push(done);
        }
        Ok(image)
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.image().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let image = self.image();
        let found = image
            .now
            .get(offset as usize..)
            .and_then(|rest| rest.get(..out.len()));
        let found = found.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.step(Some(Done::Length(len))).map(drop)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut image = self.step(None)?;
        image.synced = image.now.clone();
        image.since.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.step(Some(Done::Write(offset, data.to_vec())))
            .map(drop)
    }
}

/// A state in which nothing is: files are made under another name, and so are whole.
pub fn made() -> Vec<u8> {
    let disk = Disk::of(Vec::new(), None);
    drop(redb::Database::builder().create_with_backend(disk.clone()));
    let image = disk.image();
    image.now.clone()
}
