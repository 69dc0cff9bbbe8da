//! The tier that reads rows from the files of generations.

use std::sync::Arc;

use rowmill_arena::{ArenaError, DIRECT_ALIGN, DirectReader, HugePages, ReadError, ReaderOptions};
use rowmill_table::{PAGE_BYTES, PageChecksums, TableInfo};

use super::device::Device;
use super::failures::FileFailures;
use super::fetches::{Fetch, Fetches, Span, Taken};
use super::pace::Pace;
use super::patience::Patience;
use super::reads::FileReads;
use super::table::FileTable;
use super::{EachRow, FetchesFull, Tier, TierError, Wanted};
use crate::figures::TierFigures;

const _: () = assert!(PAGE_BYTES == DIRECT_ALIGN);
/// Reads whose answers a poll takes at most: comparing a page with its checksum and giving a row to who waits for it take a microsecond
/// or two.
const ANSWERS: usize = 4;
/// The same of a poll that tells the device of reads, which takes as long as several answers.
const ANSWERS_BESIDE: usize = 1;
/// The shortest buffer: the widest row has 8192 bytes, and lies in three pages where it starts within one.
pub const MIN_READ_BYTES: usize = 3 * PAGE_BYTES;
/// The longest: which pages are damaged is kept in the bits of a word.
pub const MAX_READ_BYTES: usize = u64::BITS as usize * PAGE_BYTES;

/// How large a file tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTierOptions {
    /// Reads in flight at most.
    pub reads: u32,
    /// Bytes of a read at most, whole pages from [`MIN_READ_BYTES`] to [`MAX_READ_BYTES`]: as far as rows of neighbouring pages are
    /// read together.
    pub read_bytes: usize,
    /// Rows that are fetched at a time at most.
    pub fetches: u32,
    /// Tables at most.
    pub tables: u32,
    /// The longest time for a fetch, whatever its deadline.
    pub budget_ns: u64,
    /// Whether devices are polled for completions; [`DirectFile::why_unpolled`](rowmill_arena::DirectFile::why_unpolled) tells
    /// whether that of a table can be.
    pub polled: bool,
    /// The pages of the buffers.
    pub huge_pages: HugePages,
}

/// What a tier has done since it was made. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Fetches taken.
    pub fetches: u64,
    /// Of these, those that needed no read of their own.
    pub joined: u64,
    /// Reads asked for.
    pub reads: u64,
    /// Bytes asked for.
    pub read_bytes: u64,
    /// Times that a fetch was refused since the tier was full, and the table's one before was not.
    pub refused: u64,
    /// Fetches answered with their row.
    pub rows: u64,
    /// Fetches answered with [`TierError::Late`].
    pub late: u64,
    /// With [`TierError::Corrupt`].
    pub corrupt: u64,
    /// With [`TierError::Gone`].
    pub gone: u64,
    /// With [`TierError::Os`] or [`TierError::Unreached`].
    pub failed: u64,
    /// Polls in which the device could not be asked.
    pub stalls: u64,
    /// Fetches that the next tier was asked for, since one had failed.
    pub passed_on: u64,
}

impl TierCounts {
    /// Both together.
    pub(super) fn and(self, other: TierCounts) -> TierCounts {
        TierCounts {
            fetches: self.fetches + other.fetches,
            joined: self.joined + other.joined,
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes + other.read_bytes,
            refused: self.refused + other.refused,
            rows: self.rows + other.rows,
            late: self.late + other.late,
            corrupt: self.corrupt + other.corrupt,
            gone: self.gone + other.gone,
            failed: self.failed + other.failed,
            stalls: self.stalls + other.stalls,
            passed_on: self.passed_on + other.passed_on,
        }
    }
}

/// A table of a tier.
#[derive(Debug)]
struct Member<F> {
    info: TableInfo,
    checksums: Arc<PageChecksums>,
    failures: Arc<FileFailures>,
    reads: Arc<FileReads>,
    file: F,
    /// Whether its last fetch was refused.
    is_full: bool,
}

/// Reads single rows from the files of tables, many at a time. Rows in the same page, or in pages that touch, are read together; a
/// page is compared with its checksum before a row of it is handed out. A table whose file hangs leaves reads and fetches to the others.
#[derive(Debug)]
pub struct FileTier<D: Device = DirectReader> {
    device: D,
    members: Box<[Option<Member<D::File>>]>,
    fetches: Fetches,
    pace: Pace,
    patience: Patience,
    counts: TierCounts,
    figures: Arc<TierFigures>,
    /// What it has published there.
    published: TierCounts,
    budget_ns: u64,
}

impl FileTier<DirectReader> {
    /// A tier without tables.
    ///
    /// # Errors
    /// As [`DirectReader::new`].
    ///
    /// # Panics
    /// If a number of the options is 0 or out of its range.
    pub fn new(options: FileTierOptions) -> Result<FileTier, ArenaError> {
        let device = DirectReader::new(ReaderOptions {
            slots: options.reads,
            slot_bytes: options.read_bytes,
            files: options.tables,
            polled: options.polled,
            huge_pages: options.huge_pages,
        })?;
        let FileTierOptions {
            fetches,
            tables,
            budget_ns,
            ..
        } = options;
        Ok(FileTier::over(device, fetches, tables, budget_ns))
    }

    /// Takes a table in; gives the number that it is asked for by.
    ///
    /// # Errors
    /// As [`DirectReader::add`].
    ///
    /// # Panics
    /// If the tier has as many tables as its options say.
    pub fn add(&mut self, table: FileTable) -> Result<u32, ArenaError> {
        let FileTable {
            info,
            file,
            checksums,
            failures,
            reads,
        } = table;
        let file = self.device.add(file)?;
        Ok(self.add_file(info, checksums, failures, reads, file))
    }

    /// Gives a table back, its file being closed. False, and nothing is done, as long as it is being read: reads whose
    /// fetches were all given up have to be answered, too.
    ///
    /// # Errors
    /// As [`DirectReader::remove`].
    ///
    /// # Panics
    /// If there is no such table.
    pub fn remove(&mut self, table: u32) -> Result<bool, ArenaError> {
        let file = self.member(table).file;
        if self.fetches.is_read(table) {
            return Ok(false);
        }
        let removed = self.device.remove(file)?;
        assert!(removed.is_some(), "no read of it is in flight");
        self.members[table as usize] = None;
        Ok(true)
    }
}

impl<D: Device> FileTier<D> {
    /// A tier over a device: room for `fetches` rows of `tables` tables, none of them waited for longer than `budget_ns`.
    ///
    /// # Panics
    /// If a number is 0, or the device's reads are too short or too long.
    pub fn over(device: D, fetches: u32, tables: u32, budget_ns: u64) -> FileTier<D> {
        let read_bytes = device.read_bytes();
        assert!(
            (MIN_READ_BYTES..=MAX_READ_BYTES).contains(&read_bytes)
                && read_bytes.is_multiple_of(PAGE_BYTES),
            "reads of {read_bytes} bytes"
        );
        assert!(tables > 0, "at least one table");
        let read_pages = (read_bytes / PAGE_BYTES) as u64;
        FileTier {
            fetches: Fetches::new(fetches, device.slots(), read_pages, tables),
            pace: Pace::default(),
            patience: Patience::default(),
            device,
            members: (0..tables).map(|_| None).collect(),
            counts: TierCounts::default(),
            figures: Arc::default(),
            published: TierCounts::default(),
            budget_ns,
        }
    }

    /// Takes a table in whose file the device knows already, and what of it is counted where; gives the number that it is asked for by.
    ///
    /// # Panics
    /// If the tier has no room for another table, or there is not a checksum for each page.
    pub fn add_file(
        &mut self,
        info: TableInfo,
        checksums: Arc<PageChecksums>,
        failures: Arc<FileFailures>,
        reads: Arc<FileReads>,
        file: D::File,
    ) -> u32 {
        assert_eq!(checksums.page_count(), info.page_count());
        let place = self.members.iter().position(Option::is_none);
        let place = place.expect("room for another table");
        self.members[place] = Some(Member {
            info,
            checksums,
            failures,
            reads,
            file,
            is_full: false,
        });
        place as u32
    }

    /// The same, which is shown where another tier of the worker's was before, on top of what that has done.
    #[must_use]
    pub fn shown_in(self, figures: Arc<TierFigures>) -> FileTier<D> {
        FileTier { figures, ..self }
    }

    /// Reads that take a slot of the device, or will.
    pub fn reads(&self) -> usize {
        self.fetches.reads()
    }

    /// What it does, for others to read: as of its last poll.
    pub fn figures(&self) -> &Arc<TierFigures> {
        &self.figures
    }

    /// What it reads by.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn member(&self, table: u32) -> &Member<D::File> {
        let member = self.members[table as usize].as_ref();
        member.expect("a table of the tier")
    }
}

impl<D: Device> Tier for FileTier<D> {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        let pages = self.member(wanted.table).info.row_place(wanted.row).pages();
        let left_ns = wanted
            .deadline_ns
            .saturating_sub(now_ns)
            .min(self.budget_ns);
        let fetch = Fetch {
            token: wanted.token,
            row: wanted.row,
            asked_ns: now_ns,
            deadline_ns: self.patience.at(now_ns).saturating_add(left_ns),
        };
        let span = Span {
            table: wanted.table,
            pages,
        };
        let taken = self.fetches.take(fetch, span);
        let member = self.members[wanted.table as usize].as_mut();
        let member = member.expect("a table of the tier");
        match taken {
            Ok(taken) => {
                member.reads.begin();
                self.counts.fetches += 1;
                self.counts.joined += u64::from(taken == Taken::Joined);
            }
            Err(_) => self.counts.refused += u64::from(!member.is_full),
        }
        member.is_full = taken.is_err();
        taken.map(drop)
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        let FileTier {
            device,
            members,
            fetches,
            pace,
            patience,
            counts,
            figures,
            published,
            ..
        } = self;
        let member = |span: &Span| {
            let member = members[span.table as usize].as_ref();
            member.expect("a table that is read stays")
        };
        let waiting = fetches.waiting();
        let most = pace.reads(now_ns, waiting, fetches.reads() - waiting);
        let mut answers = ANSWERS;
        fetches.begin(most, |number, span| {
            answers = ANSWERS_BESIDE;
            let (offset, len) = span.bytes();
            device.submit(member(span).file, offset, len, number.into());
            counts.reads += 1;
            counts.read_bytes += len as u64;
        });
        let polled = device.poll(answers, &mut |number, outcome| {
            let mut damaged = None;
            fetches.finish(number as u32, outcome.is_err(), |span, fetch| {
                let member = member(span);
                let answer = match outcome {
                    Ok(bytes) => {
                        let damaged = *damaged.get_or_insert_with(|| member.damaged(span, bytes));
                        member.row(span, bytes, damaged, fetch.row)
                    }
                    Err(ReadError::Truncated) => Err(TierError::Gone),
                    Err(ReadError::Os(number)) => Err(TierError::Os(number)),
                };
                counts.note(&answer);
                member.failures.note(&answer);
                if answer.is_ok() {
                    let took_ns = now_ns.saturating_sub(fetch.asked_ns);
                    member.reads.times.record(took_ns);
                }
                each(fetch.token, answer);
            });
        });
        counts.stalls += u64::from(polled.is_err());
        figures.publish(published, counts);
        // What has come is taken first, however late it is looked at.
        if polled.is_ok_and(|taken| taken == answers) {
            return;
        }
        fetches.expire(patience.at(now_ns), |span, fetch| {
            let answer = Err(TierError::Late);
            counts.note(&answer);
            member(span).failures.note(&answer);
            each(fetch.token, answer);
        });
    }

    fn unanswered(&self) -> usize {
        self.fetches.unanswered()
    }

    fn counts(&self) -> TierCounts {
        self.counts
    }
}

impl<F> Member<F> {
    /// The pages of what was read that don't match their checksums, a bit each.
    fn damaged(&self, span: &Span, bytes: &[u8]) -> u64 {
        let (pages, rest) = bytes.as_chunks::<PAGE_BYTES>();
        assert!(rest.is_empty() && pages.len() as u64 == span.len());
        let bad = |(bit, (number, page)): (u32, (u64, &[u8; PAGE_BYTES]))| {
            u64::from(!self.checksums.is_whole(number, page)) << bit
        };
        (0..).zip(span.pages.clone().zip(pages)).map(bad).sum()
    }

    /// A row in what was read.
    fn row<'a>(
        &self,
        span: &Span,
        bytes: &'a [u8],
        damaged: u64,
        row: u32,
    ) -> Result<&'a [u8], TierError> {
        let place = self.info.row_place(row);
        for page in place.pages() {
            if damaged >> (page - span.pages.start) & 1 == 1 {
                return Err(TierError::Corrupt { page });
            }
        }
        let (offset, _) = span.bytes();
        Ok(&bytes[(place.offset - offset) as usize..][..place.bytes])
    }
}

impl TierCounts {
    pub(super) fn note(&mut self, answer: &Result<&[u8], TierError>) {
        *match answer {
            Ok(_) => &mut self.rows,
            Err(TierError::Late) => &mut self.late,
            Err(TierError::Corrupt { .. }) => &mut self.corrupt,
            Err(TierError::Gone) => &mut self.gone,
            Err(TierError::Os(_) | TierError::Unreached) => &mut self.failed,
        } += 1;
    }
}
