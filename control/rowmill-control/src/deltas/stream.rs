//! Deltas that come by a stream of Redis: an entry has a delta's bytes in its field `delta`.
//!
//! One reader without a group, which keeps its own place in the stream, in a file beside the log: where that is lost, or is behind what was taken,
//! entries come again, and are known by number and bytes. So each is applied once, whoever was killed. What Redis has acknowledged
//! to who adds it is only as durable as its own configuration says (`appendonly yes`, `appendfsync always`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::streams::{StreamId, StreamReadReply};
use redis::{Connection, ErrorKind, FromRedisValue, RedisError, Value};

use super::{Log, NotTaken, sync};
use crate::config::Stream;

/// An entry is waited for for so long; then it is looked whether this is the end.
const HOLD: Duration = Duration::from_secs(1);
/// Redis answers everything else in so long, or is given up: an entry may have 512 MiB.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest pause until it is tried again; the first is a tenth of a second, and each twice the one before.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Before any entry.
const BEGINNING: &str = "0-0";
/// The field of an entry.
const FIELD: &str = "delta";

/// Why reading has stopped.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error("{0}")]
    Redis(#[from] RedisError),
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    #[error("cannot keep the place in the stream in {}: {source}", path.display())]
    Place { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Password(String),
}

/// See the module's text.
pub(crate) struct Reader {
    log: Arc<Log>,
    stream: Stream,
    place: PathBuf,
    ended: Arc<AtomicBool>,
}

impl Reader {
    pub(crate) fn new(log: Arc<Log>, stream: Stream, ended: Arc<AtomicBool>) -> Reader {
        Reader {
            place: log.directory.join("stream-place"),
            log,
            stream,
            ended,
        }
    }

    /// Reads until the end.
    pub(crate) fn run(&self) {
        let mut pause = PAUSE_MAX / 50;
        while !self.ended.load(Ordering::Relaxed) {
            let mut has_come = false;
            let stopped = self.read(&mut || has_come = true);
            if has_come {
                pause = PAUSE_MAX / 50;
            }
            let Err(why) = stopped else { return };
            self.says(format!("cannot be read: {why}; trying again"));
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    fn says(&self, what: String) {
        let text = format!(
            "stream {} at {} {what}",
            self.stream.stream, self.stream.redis
        );
        self.log.says("stream", text);
    }

    fn connect(&self) -> Result<Connection, Stopped> {
        let mut info = redis::IntoConnectionInfo::into_connection_info(&*self.stream.redis)?;
        if let Some(path) = &self.stream.password_file {
            let password = fs::read_to_string(path);
            let password = password.map_err(|error| {
                Stopped::Password(format!(
                    "deltas.redis.password_file: {}: {error}",
                    path.display()
                ))
            })?;
            let settings = info.redis_settings().clone().set_password(password.trim());
            info = info.set_redis_settings(settings);
        }
        let connection = redis::Client::open(info)?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    /// Reads until the end, or until something goes wrong.
    fn read(&self, came: &mut dyn FnMut()) -> Result<(), Stopped> {
        let mut connection = self.connect()?;
        let mut place = self.kept_place(&mut connection)?;
        self.says(format!("is read, from {place} on"));
        while !self.ended.load(Ordering::Relaxed) {
            let mut read = redis::cmd("XREAD");
            read.arg("COUNT")
                .arg(1)
                .arg("BLOCK")
                .arg(HOLD.as_millis() as u64);
            read.arg("STREAMS").arg(&self.stream.stream).arg(&place);
            let reply: Option<StreamReadReply> = read.query(&mut connection)?;
            came();
            let entries = reply.into_iter().flat_map(|reply| reply.keys);
            for entry in entries.flat_map(|key| key.ids) {
                self.take(&entry)?;
                place.clone_from(&entry.id);
                self.keep_place(&place)?;
                self.says(format!("was read to {place}"));
            }
        }
        Ok(())
    }

    /// What becomes of an entry: one that can't be taken is told, and passed by.
    fn take(&self, entry: &StreamId) -> Result<(), Stopped> {
        let refuse = |why: &str| {
            tracing::warn!(
                "entry {} of stream {} is not taken: {why}; send it again once it can be",
                entry.id,
                self.stream.stream
            );
        };
        let Some(Value::BulkString(bytes)) = entry.map.get(FIELD) else {
            refuse(&format!("it has no field `{FIELD}`"));
            return Ok(());
        };
        if bytes.len() as u64 > self.log.most {
            refuse(&format!(
                "it has {} bytes, and deltas.max_bytes is {}",
                bytes.len(),
                self.log.most
            ));
            return Ok(());
        }
        match self.log.give(bytes) {
            Ok(_) => Ok(()),
            // It may be kept when there is room again.
            Err(error @ NotTaken::Io { .. }) => Err(error.into()),
            Err(error) => {
                refuse(&error.to_string());
                Ok(())
            }
        }
    }

    /// Where reading goes on. A stream that ends before that was begun anew, and is read from its beginning.
    fn kept_place(&self, connection: &mut Connection) -> Result<String, Stopped> {
        let unread = |source| Stopped::Place {
            path: self.place.clone(),
            source,
        };
        let text = match fs::read_to_string(&self.place) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BEGINNING.into()),
            Err(error) => return Err(unread(error)),
        };
        // Another stream's, or none.
        let place = text.trim().split_once(' ');
        let Some((kept, _)) = place.filter(|(_, of)| *of == self.stream.stream) else {
            return Ok(BEGINNING.into());
        };
        let Some(kept_number) = number(kept) else {
            return Ok(BEGINNING.into());
        };
        let mut last = redis::cmd("XREVRANGE");
        last.arg(&self.stream.stream)
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(1);
        let last: Value = last.query(connection)?;
        let id = match &last {
            Value::Array(entries) => entries.first().and_then(|entry| match entry {
                Value::Array(parts) => parts.first().cloned(),
                _ => None,
            }),
            _ => None,
        };
        let id = id.map(String::from_redis_value).transpose();
        let id = id.map_err(|_| RedisError::from((ErrorKind::UnexpectedReturnType, "no entry")))?;
        match id.as_deref().and_then(number) {
            Some(last) if last < kept_number => {
                tracing::warn!(
                    "stream {} ends before {kept}, to where it was read: it was begun anew, and is read from its beginning",
                    self.stream.stream
                );
                Ok(BEGINNING.into())
            }
            _ => Ok(kept.into()),
        }
    }

    fn keep_place(&self, place: &str) -> Result<(), Stopped> {
        let kept = write_whole(&self.place, &format!("{place} {}\n", self.stream.stream));
        kept.map_err(|source| Stopped::Place {
            path: self.place.clone(),
            source,
        })
    }
}

/// An entry's number: milliseconds, and a count.
fn number(id: &str) -> Option<(u64, u64)> {
    let (time, count) = id.split_once('-')?;
    Some((time.parse().ok()?, count.parse().ok()?))
}

/// Writes a small file so that it is there whole, whatever happens meanwhile.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("tmp");
    let mut file = File::create(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    path.parent().map_or(Ok(()), sync)
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn entries_are_in_the_order_of_their_numbers() {
        assert_eq!(number("1700000000000-7"), Some((1_700_000_000_000, 7)));
        assert!(number("9-1") < number("10-0") && number("5-9") < number("5-10"));
        for none in ["", "5", "-1", "5-", "a-1", "5-1-1"] {
            assert_eq!(number(none), None, "{none}");
        }
    }
}
