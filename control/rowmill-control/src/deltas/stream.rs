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
use std::time::{Duration, Instant};

use redis::streams::{StreamId, StreamInfoStreamReply, StreamReadReply};
use redis::{Connection, RedisError, Value};
use rowmill_table::sync_directory;

use super::{Log, NotTaken, Source};
use crate::config::Stream;

/// An entry is waited for for so long; then it is looked whether this is the end.
const HOLD: Duration = Duration::from_secs(1);
/// Redis answers everything else in so long, or is given up: an entry may have 512 MiB.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest pause until it is tried again; the first is a tenth of a second, and each twice the one before.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// While nothing comes it is looked whether the stream was begun anew, after so long at first and at most, each time twice the one before: Redis
/// tells the stream's first and last entry with its last number, of up to 512 MiB each.
const LOOK: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(320)];
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
        while !self.log.has_heard() && !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(HOLD / 10);
        }
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
        self.log.sources().says(Source::Stream, &text);
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
        let mut place = self.kept_place()?;
        if !self.is_renewed(&place, &mut connection)? {
            self.says(format!("is read, from {place} on"));
        } else {
            place = BEGINNING.into();
        }
        let (mut looked, mut pause) = (Instant::now(), LOOK[0]);
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
                (looked, pause) = (Instant::now(), LOOK[0]);
                self.take(&entry)?;
                place.clone_from(&entry.id);
                self.keep_place(&place)?;
                self.says(format!("was read to {place}"));
            }
            if looked.elapsed() >= pause {
                if self.is_renewed(&place, &mut connection)? {
                    place = BEGINNING.into();
                }
                (looked, pause) = (Instant::now(), (2 * pause).min(LOOK[1]));
            }
        }
        Ok(())
    }

    /// Whether the stream has ended before a place to which it was read: it was removed, or begun anew, or is that of a server that lacks
    /// the last entries. Then it is read from its beginning, since nothing is applied twice.
    fn is_renewed(&self, place: &str, connection: &mut Connection) -> Result<bool, Stopped> {
        if place == BEGINNING {
            return Ok(false);
        }
        let mut about = redis::cmd("XINFO");
        about.arg("STREAM").arg(&self.stream.stream);
        let last = match about.query::<StreamInfoStreamReply>(connection) {
            Ok(about) => Some(about.last_generated_id),
            Err(error)
                if error
                    .detail()
                    .is_some_and(|why| why.contains("no such key")) =>
            {
                None
            }
            Err(error) => return Err(error.into()),
        };
        if last
            .as_deref()
            .is_some_and(|last| number(last) >= number(place))
        {
            return Ok(false);
        }
        let ends = last.map_or("is not there".into(), |last| format!("ends at {last}"));
        let what = format!(
            "{ends}, and was read to {place}: it was begun anew, and is read from its beginning"
        );
        tracing::warn!("stream {} {what}", self.stream.stream);
        self.says(what);
        Ok(true)
    }

    /// What becomes of an entry: one that can't be taken is told, and reading goes on after it.
    fn take(&self, entry: &StreamId) -> Result<(), Stopped> {
        let what = format!("entry {} of stream {}", entry.id, self.stream.stream);
        let again = |why: &str| format!("{why}; send it again once it can be");
        let sources = || self.log.sources();
        let refuse = |why: &str| sources().refused(Source::Stream, &what, &again(why));
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
            Ok(_) => {
                sources().took(Source::Stream);
                Ok(())
            }
            // It may be kept when there is room again, or the disk can be read.
            Err(error) if error.may_pass() => Err(error.into()),
            Err(NotTaken::Ahead(why)) => {
                sources().passed_by(Source::Stream, &what, &again(&why));
                Ok(())
            }
            Err(error) => {
                refuse(&error.to_string());
                Ok(())
            }
        }
    }

    /// The place that was kept, in this stream.
    fn kept_place(&self) -> Result<String, Stopped> {
        let text = match fs::read_to_string(&self.place) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BEGINNING.into()),
            Err(source) => {
                let path = self.place.clone();
                return Err(Stopped::Place { path, source });
            }
        };
        let place = text.trim().split_once(' ');
        let place = place.filter(|(kept, of)| *of == self.stream.stream && number(kept).is_some());
        Ok(place.map_or(BEGINNING, |(kept, _)| kept).into())
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
    path.parent().map_or(Ok(()), sync_directory)
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
